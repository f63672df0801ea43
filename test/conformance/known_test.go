package conformance

// difference is what is known to differ in the answers to one request.
type difference struct {
	why string
	at  map[string]pair // by the path in the answer; nothing else may differ
}

// known returns the requests whose answers differ, with the reason. A request that
// does not differ any more must be taken off.
func known() map[string]difference {
	return map[string]difference{}
}
