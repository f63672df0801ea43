package conformance

// difference has the known differences of the answers to one request.
type difference struct {
	why string
	at  map[string]pair // by the path in the answer; nothing else may differ
}

// known returns the requests with different answers, and the reasons. Requests whose answers do
// not differ any more must be removed.
func known() map[string]difference {
	reason := difference{"the authorizer of workspaces gives a reason for every refusal",
		map[string]pair{".Body.status.reason": {kcp: `"access denied"`}}}
	// The managed fields of a namespace that the server creates.
	label := `"fieldsV1":{"f:metadata":{"f:labels":{".":{},"f:kubernetes.io/metadata.name":{}}}}`
	maker := pair{stock: `[{"apiVersion":"v1","fieldsType":"FieldsV1",` + label +
		`,"manager":"kube-apiserver","operation":"Update","time":"\u003ctime\u003e"}]`}
	return map[string]difference{
		"access.http: forbidden": denied(`configmaps is forbidden: User \"ordinary\" cannot list resource ` +
			`\"configmaps\" in API group \"\" in the namespace \"default\"`),
		"access.http: forbidden in all": denied(`configmaps is forbidden: User \"ordinary\" cannot list resource ` +
			`\"configmaps\" in API group \"\" at the cluster scope`),
		"access.http: forbidden token": denied(`serviceaccounts \"default\" is forbidden: User \"ordinary\" cannot create resource ` +
			`\"serviceaccounts/token\" in API group \"\" in the namespace \"default\"`),
		"access.http: self review":    reason,
		"access.http: subject review": reason,
		"access.http: forbidden URL": {"metrics are of the whole server, and 501 in a workspace", map[string]pair{
			".Status":      {"403", "501"},
			".ContentType": {`"application/json"`, `"text/plain; charset=utf-8"`},
			".Body": {`{"apiVersion":"v1","code":403,"details":{},"kind":"Status","message":"forbidden: User \"ordinary\" cannot get path \"/metrics\"",` +
				`"metadata":{},"reason":"Forbidden","status":"Failure"}`,
				`"metrics are served for the whole server at /metrics, not for one logical cluster\n"`},
		}},
		"access.http: no token": {"the message says which field is missing", map[string]pair{".Body.message": {
			`"token is required for TokenReview in authentication"`, `"spec.token is missing: a TokenReview needs the token to review"`}}},
		"core.http: namespace table": {"what every workspace has is stored without managed fields",
			map[string]pair{".Body.rows[0].object.metadata.managedFields": maker}},
		"core.http: namespace status": {"what every workspace has is stored without managed fields",
			map[string]pair{".Body.metadata.managedFields": maker}},
		"core.http: unknown resource": {"the message says what to do", map[string]pair{
			".Body.details.causes": {kcp: `[{"message":"404 page not found","reason":"UnexpectedServerResponse"}]`},
			".Body.details.kind":   {kcp: `"nonsense"`},
			".Body.message": {`"the server could not find the requested resource"`,
				`"the server could not find the requested resource: workspaces run no containers, and this one serves no nonsense; ` +
					`\"kubectl api-resources\" lists what it serves, and an APIBinding or a CustomResourceDefinition adds more (docs/workloads.md, docs/custom-resources.md)"`},
		}},
		"core.http: unknown group": {"the answer is a Status, whose message says what to do", map[string]pair{
			".ContentType": {`"text/plain; charset=utf-8"`, `"application/json"`},
			".Body": {`"404 page not found\n"`, `{"apiVersion":"v1","code":404,"details":{"causes":[{"message":"404 page not found","reason":"UnexpectedServerResponse"}],` +
				`"group":"nonsense.io","kind":"things"},"kind":"Status","message":"the server could not find the requested resource: this workspace serves no things.nonsense.io; ` +
				`\"kubectl api-resources\" lists what it serves, and an APIBinding or a CustomResourceDefinition adds more (docs/workloads.md, docs/custom-resources.md)","metadata":{},"reason":"NotFound","status":"Failure"}`},
		}},
		"core.http: token": {"the audience is that of the server", map[string]pair{
			".Body.spec.audiences[0]": {`"https://kubernetes.default.svc.cluster.local"`, `"https://kcp.default.svc"`}}},
	}
}

func denied(message string) difference {
	return difference{"the authorizer of workspaces gives a reason for every refusal",
		map[string]pair{".Body.message": {`"` + message + `"`, `"` + message + `: access denied"`}}}
}
