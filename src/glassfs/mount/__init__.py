"""The kernel side: callbacks, options, the daemon, readiness. It knows trees and nothing below them."""
