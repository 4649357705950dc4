"""One module per kind of thing: read the request, call one service or one node, answer."""
