"""What is elsewhere: objects on servers, named by URLs, as stores like any other."""
