"""The routes of the HTTP service, one file per noun. Handlers parse, call and map: no rules."""
