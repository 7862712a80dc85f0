"""The built-in formats: each module or package recognizes its containers and opens them as contents."""
