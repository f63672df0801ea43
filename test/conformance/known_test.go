package conformance

// known returns the requests whose answers differ, with the reason. A request that
// does not differ any more must be taken off.
func known() map[string]string {
	const denied = "the authorizer of workspaces gives a reason for every refusal"
	return map[string]string{
		"access.http: forbidden":        denied,
		"access.http: forbidden in all": denied,
		"access.http: forbidden token":  denied,
		"access.http: self review":      denied,
		"access.http: subject review":   denied,
		"access.http: forbidden URL":    "metrics are of the whole server, and 501 in a workspace",
		"access.http: no token":         "the message says which field is missing",
		"core.http: namespace table":    "what every workspace has is stored without managed fields",
		"core.http: namespace status":   "what every workspace has is stored without managed fields",
		"core.http: token":              "the audience is that of the server",
	}
}
