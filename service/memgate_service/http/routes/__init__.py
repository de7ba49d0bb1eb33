"""The routes of the HTTP service, a file per noun. Handlers parse, call and map: no rules here."""
