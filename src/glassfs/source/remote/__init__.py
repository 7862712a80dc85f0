"""Remote sources: objects on servers, named by URLs, as stores like any other."""
