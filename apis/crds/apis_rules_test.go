package crds_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

const (
	exports        = "apiexports.apis.kcp.io"
	bindings       = "apibindings.apis.kcp.io"
	schemas        = "apiresourceschemas.apis.kcp.io"
	apiConversions = "apiconversions.apis.kcp.io"
	endpointSlices = "apiexportendpointslices.apis.kcp.io"
)

func runAll(t *testing.T, d definition, changes ...change) {
	for _, c := range changes {
		t.Run(c.name, func(t *testing.T) { c.run(t, d) })
	}
}

// claimChanges are changes of a list of claims. At is the object around an entry, and rest are
// further fields of the entry.
func claimChanges(at, rest string) []change {
	claim := func(fields string) string { return strings.Replace(at, "CLAIM", "{"+fields+rest+"}", 1) }
	return []change{
		{"the core group", ``, claim(`resource: secrets`), nil},
		{"a group", ``, claim(`resource: widgets, group: example.org`), nil},
		{"a malformed group", ``, claim(`resource: widgets, group: example_org`), []string{"group: Invalid value"}},
		{"no resource", ``, claim(`group: example.org`), []string{"resource: Required"}},
		{"a malformed resource", ``, claim(`resource: Widgets`), []string{"resource: Invalid value"}},
		{"a short resource", ``, claim(`resource: w`), []string{"resource: Invalid value"}},
	}
}

// oldClaimChanges are claimChanges of v1alpha1.
func oldClaimChanges(at, rest string) []change {
	claim := func(fields string) string { return strings.Replace(at, "CLAIM", "{"+fields+rest+"}", 1) }
	const one = "either all must be true or resourceSelector must be set"
	return append(claimChanges(at, ", all: true"+rest),
		change{"selected objects", ``, claim(`resource: secrets, resourceSelector: [{name: "system:a.b_c"}, {namespace: a}, {name: a, namespace: b}]`), nil},
		change{"nothing claimed", ``, claim(`resource: secrets`), []string{one}},
		change{"all is false", ``, claim(`resource: secrets, all: false`), []string{one}},
		change{"no selectors", ``, claim(`resource: secrets, resourceSelector: []`), []string{one}},
		change{"all and selectors", ``, claim(`resource: secrets, all: true, resourceSelector: [{name: a}]`), []string{one}},
		change{"an empty selector", ``, claim(`resource: secrets, resourceSelector: [{}]`), []string{"name or namespace must be set"}},
		change{"an empty name", ``, claim(`resource: secrets, resourceSelector: [{name: ""}]`), []string{"name in body should be at least 1"}},
		change{"an empty namespace", ``, claim(`resource: secrets, resourceSelector: [{namespace: ""}]`), []string{"namespace in body should be at least 1"}},
		change{"a malformed name", ``, claim(`resource: secrets, resourceSelector: [{name: a/b}]`), []string{"should match"}},
		change{"a long name", ``, claim(`resource: secrets, resourceSelector: [{name: ` + strings.Repeat("a", 254) + `}]`), []string{"Too long"}},
	)
}

// newClaimChanges are claimChanges of v1alpha2.
func newClaimChanges(at, rest string) []change {
	claim := func(fields string) string { return strings.Replace(at, "CLAIM", "{"+fields+rest+"}", 1) }
	return append(claimChanges(at, `, verbs: ["*"]`+rest),
		change{"a default selector", ``, claim(`resource: secrets, verbs: [get, list], defaultSelector: {matchLabels: {a: b}}`), nil},
		change{"a missing list of verbs", ``, claim(`resource: secrets`), []string{"verbs: Required"}},
		change{"no verbs", ``, claim(`resource: secrets, verbs: []`), []string{"verbs: Invalid value: 0"}},
		change{"a verb twice", ``, claim(`resource: secrets, verbs: [get, get]`), []string{"verbs[1]: Duplicate value"}},
	)
}

func TestSharingDefaults(t *testing.T) {
	for _, c := range []struct{ name, version, text, want string }{
		{exports, "v1alpha1", `spec: {permissionClaims: [{resource: a}]}`, `spec: {permissionClaims: [{resource: a, group: ""}]}`},
		{exports, "v1alpha2", `spec: {resources: [{name: a}], permissionClaims: [{resource: a}]}`,
			`spec: {resources: [{name: a, storage: {crd: {}}}], permissionClaims: [{resource: a, group: "", identityHash: ""}]}`},
		{exports, "v1alpha2", `spec: {resources: [{name: a, storage: {virtual: {}}}]}`, `spec: {resources: [{name: a, storage: {virtual: {}}}]}`},
		{bindings, "v1alpha1", `spec: {permissionClaims: [{resource: a}]}`, `spec: {permissionClaims: [{resource: a, group: ""}]}`},
		{bindings, "v1alpha2", `spec: {permissionClaims: [{resource: a}]}`, `spec: {permissionClaims: [{resource: a, group: "", identityHash: ""}]}`},
		{schemas, "v1alpha1", `spec: {versions: [{name: v1}]}`, `spec: {nameValidation: DNS1123Subdomain, versions: [{name: v1, served: true}]}`},
		{"clustercachedresources.cache.kcp.io", "v1alpha1", `status: {}`, `status: {phase: Initializing}`},
	} {
		d := load(t, c.name, c.version)
		var want map[string]any
		if err := yaml.Unmarshal([]byte(c.want), &want); err != nil {
			t.Fatal(err)
		}
		got := d.object(t, c.text)
		delete(got, "apiVersion")
		delete(got, "kind")
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s %s: %s", c.name, c.version, diff)
		}
	}
}

func TestExportRules(t *testing.T) {
	for _, version := range []string{"v1alpha1", "v1alpha2"} {
		runAll(t, load(t, exports, version),
			change{version + " with nothing", ``, ``, nil},
			change{version + " with a policy", ``, `spec: {maximalPermissionPolicy: {local: {}}}`, nil},
			change{version + " with an empty policy", ``, `spec: {maximalPermissionPolicy: {}}`, []string{"local must be set"}},
			change{version + " with an address", ``, `status: {virtualWorkspaces: [{url: a}]}`, nil},
			change{version + " with an empty address", ``, `status: {virtualWorkspaces: [{url: ""}]}`, []string{"url"}},
		)
	}

	old := load(t, exports, "v1alpha1")
	runAll(t, old, oldClaimChanges(`spec: {permissionClaims: [CLAIM]}`, ``)...)
	runAll(t, old,
		change{"two schemas", ``, `spec: {latestResourceSchemas: [a, b]}`, nil},
		change{"one schema twice", ``, `spec: {latestResourceSchemas: [a, a]}`, []string{"latestResourceSchemas[1]: Duplicate"}},
		change{"two claims", ``, `spec: {permissionClaims: [{resource: secrets, all: true}, {resource: secrets, group: a, all: true}]}`, nil},
		change{"one claim twice", ``, `spec: {permissionClaims: [{resource: secrets, all: true}, {resource: secrets, identityHash: a, all: true}]}`, []string{"permissionClaims[1]: Duplicate"}},
	)

	stored := load(t, exports, "v1alpha2")
	resource := func(more string) string {
		return `spec: {resources: [{name: widgets, group: example.org, schema: v1.widgets.example.org` + more + `}]}`
	}
	const storage = "exactly one of crd, virtual and native must be set"
	const virtual = `virtual: {identityHash: a, reference: {apiGroup: a, kind: b, name: c}}`
	runAll(t, stored, newClaimChanges(`spec: {permissionClaims: [CLAIM]}`, ``)...)
	runAll(t, stored,
		change{"default storage", ``, resource(``), nil},
		change{"storage like custom resources", ``, resource(`, storage: {crd: {}}`), nil},
		change{"storage elsewhere", ``, resource(`, storage: {` + virtual + `}`), nil},
		change{"no storage", ``, resource(`, storage: {}`), []string{storage}},
		change{"two storages", ``, resource(`, storage: {crd: {}, ` + virtual + `}`), []string{storage}},
		change{"a kind of the server", ``, `spec: {resources: [{name: deployments, group: apps, storage: {native: {}}}]}`, nil},
		change{"a kind of the server with an empty schema", ``, `spec: {resources: [{name: deployments, group: apps, schema: "", storage: {native: {}}}]}`, nil},
		change{"a kind of the server with a schema", ``, resource(`, storage: {native: {}}`), []string{"schema must be set, unless storage.native is set"}},
		change{"three storages", ``, resource(`, storage: {crd: {}, native: {}, ` + virtual + `}`), []string{"schema must be set", storage}},
		change{"a kind of the server elsewhere", ``, resource(`, storage: {native: {}, ` + virtual + `}`), []string{"schema must be set", storage}},
		change{"storage without anything", ``, resource(`, storage: {virtual: {}}`), []string{"identityHash: Required", "reference: Required"}},
		change{"an empty reference", ``, resource(`, storage: {virtual: {identityHash: a, reference: {}}}`), []string{"kind: Required", "name: Required"}},
		change{"a resource without anything", ``, `spec: {resources: [{}]}`, []string{"name: Required", "group: Required", "schema must be set"}},
		change{"one resource twice", ``, `spec: {resources: [{name: a, group: b, schema: c}, {name: a, group: b, schema: d}]}`, []string{"resources[1]: Duplicate"}},
		change{"one name in two groups", ``, `spec: {resources: [{name: a, group: b, schema: c}, {name: a, group: c, schema: d}]}`, nil},
		change{"one claim twice", ``, `spec: {permissionClaims: [{resource: secrets, verbs: [get]}, {resource: secrets, identityHash: a, verbs: [get]}]}`, []string{"permissionClaims[1]: Duplicate"}},
	)
}

func TestBindingRules(t *testing.T) {
	const reference = `reference: {export: {path: "root:a", name: b}}`
	const bound = `{group: "", resource: a, schema: {name: b, UID: c, identityHash: d}`
	for _, version := range []string{"v1alpha1", "v1alpha2"} {
		with := func(status string) string { return "spec: {" + reference + "}\nstatus: {" + status + "}" }
		runAll(t, load(t, bindings, version),
			change{version + " with nothing", ``, ``, []string{"spec: Required"}},
			change{version + " without reference", ``, `spec: {}`, []string{"spec.reference: Required"}},
			change{version + " without name", ``, `spec: {reference: {export: {}}}`, []string{"name: Required"}},
			change{version + " with a malformed path", ``, `spec: {reference: {export: {name: a, path: "root:"}}}`, []string{"should match"}},
			change{version + " unchanged", `spec: {` + reference + `}`, `spec: {` + reference + `}`, nil},
			change{version + " of another export", `spec: {` + reference + `}`, `spec: {reference: {export: {path: "root:a", name: c}}}`, []string{"APIExport reference must not be changed"}},
			change{version + " of another path", `spec: {` + reference + `}`, `spec: {reference: {export: {name: b}}}`, []string{"APIExport reference must not be changed"}},
			change{version + " without phase", ``, with(`phase: ""`), nil},
			change{version + " that is bound", ``, with(`phase: Bound`), nil},
			change{version + " in an unknown phase", ``, with(`phase: Ready`), []string{"status.phase: Unsupported value"}},
			change{version + " with bound resources", ``, with(`boundResources: [` + bound + `, storageVersions: [v1, v2]}, {group: b, resource: a, schema: {name: b, UID: c, identityHash: d}}]`), nil},
			change{version + " with a resource twice", ``, with(`boundResources: [` + bound + `}, ` + bound + `}]`), []string{"boundResources[1]: Duplicate"}},
			change{version + " with a version twice", ``, with(`boundResources: [` + bound + `, storageVersions: [v1, v1]}]`), []string{"storageVersions[1]: Duplicate"}},
			change{version + " with a resource without anything", ``, with(`boundResources: [{}]`), []string{"group: Required", "resource: Required", "schema: Required"}},
			change{version + " with an empty schema", ``, with(`boundResources: [{group: "", resource: a, schema: {name: "", UID: "", identityHash: ""}}]`), []string{"name", "UID", "identityHash"}},
		)
	}

	old := load(t, bindings, "v1alpha1")
	runAll(t, old, oldClaimChanges(`spec: {`+reference+`, permissionClaims: [CLAIM]}`, `, state: Accepted`)...)
	for _, list := range []string{"exportPermissionClaims", "appliedPermissionClaims"} {
		runAll(t, old, oldClaimChanges("spec: {"+reference+"}\nstatus: {"+list+": [CLAIM]}", ``)...)
	}
	answer := func(fields string) string { return "spec: {" + reference + ", permissionClaims: [{" + fields + "}]}" }
	runAll(t, old,
		change{"no export", ``, `spec: {reference: {}}`, []string{"export must be set"}},
		change{"rejected", ``, answer(`resource: secrets, all: true, state: Rejected`), nil},
		change{"no answer", ``, answer(`resource: secrets, all: true`), []string{"state: Required"}},
		change{"another answer", ``, answer(`resource: secrets, all: true, state: Maybe`), []string{"state: Unsupported value"}},
	)

	stored := load(t, bindings, "v1alpha2")
	runAll(t, stored, newClaimChanges(`spec: {`+reference+`, permissionClaims: [CLAIM]}`, `, selector: {matchAll: true}, state: Accepted`)...)
	runAll(t, stored, newClaimChanges("spec: {"+reference+"}\nstatus: {exportPermissionClaims: [CLAIM]}", ``)...)
	runAll(t, stored, newClaimChanges("spec: {"+reference+"}\nstatus: {appliedPermissionClaims: [CLAIM]}", `, selector: {matchAll: true}`)...)
	const secrets = `resource: secrets, verbs: ["*"], `
	runAll(t, stored,
		change{"no export", ``, `spec: {reference: {}}`, nil}, // admission refuses it
		change{"no selector", ``, answer(secrets + `state: Accepted`), []string{"selector: Required"}},
		change{"no answer", ``, answer(secrets + `selector: {}`), []string{"state: Required"}},
		change{"another answer", ``, answer(secrets + `selector: {}, state: Maybe`), []string{"state: Unsupported value"}},
		change{"another selector", answer(secrets + `selector: {matchAll: true}, state: Accepted`), answer(secrets + `selector: {matchLabels: {a: b}}, state: Accepted`), nil},
	)
	for _, list := range []string{"spec: {" + reference + ", permissionClaims: [CLAIMS]}", "spec: {" + reference + "}\nstatus: {appliedPermissionClaims: [CLAIMS]}"} {
		two := func(identity string) string {
			claim := `{resource: secrets, verbs: ["*"], selector: {matchAll: true}, state: Accepted, identityHash: %s}`
			return strings.Replace(list, "CLAIMS", fmt.Sprintf(claim+", "+claim, "a", identity), 1)
		}
		runAll(t, stored,
			change{"two identities", ``, two("b"), nil},
			change{"one claim twice", ``, two("a"), []string{"ermissionClaims[1]: Duplicate"}},
		)
	}
}

func TestResourceSchemaRules(t *testing.T) {
	with := func(version, more string) string {
		return `spec: {group: "", names: {plural: a, kind: A}, scope: Cluster, versions: [` + version + `]` + more + `}`
	}
	const v1 = `{name: v1, served: true, storage: true, schema: {type: object}}`
	const v2 = `{name: v2beta10, served: true, storage: false, schema: {type: object}}`
	const webhook = "webhook must be set if the strategy is Webhook, and only then"
	runAll(t, load(t, schemas, "v1alpha1"),
		change{"nothing", ``, ``, nil},
		change{"one version", ``, with(v1, ``), nil},
		change{"an empty spec", ``, `spec: {}`, []string{"group: Required", "names: Required", "scope: Required", "versions: Required"}},
		change{"empty names", ``, `spec: {group: "", names: {}, scope: Cluster, versions: [` + v1 + `]}`, []string{"kind: Required", "plural: Required"}},
		change{"another scope", ``, `spec: {group: "", names: {plural: a, kind: A}, scope: World, versions: [` + v1 + `]}`, []string{"scope: Unsupported value"}},
		change{"no versions", ``, with(``, ``), []string{"versions: Invalid value: 0"}},
		change{"two versions", ``, with(v1+", "+v2, `, conversion: {strategy: None}`), nil},
		change{"two versions without conversion", ``, with(v1+", "+v2, ``), []string{"conversion must be set if there is more than one version"}},
		change{"one version twice", ``, with(v1+", "+v1, `, conversion: {strategy: None}`), []string{"versions[1]: Duplicate"}},
		change{"a version without anything", ``, with(`{}`, ``), []string{"name: Required", "storage: Required", "schema: Required"}},
		change{"a malformed version", ``, with(`{name: v01, storage: true, schema: {}}`, ``), []string{"should match"}},
		change{"an empty version", ``, with(`{name: "", storage: true, schema: {}}`, ``), []string{"at least 1"}},
		change{"a schema that is none", ``, with(`{name: v1, storage: true, schema: text}`, ``), []string{"must be of type object"}},
		change{"a column twice", ``, with(`{name: v1, storage: true, schema: {}, additionalPrinterColumns: [{name: a, type: string, jsonPath: .a}, {name: a, type: string, jsonPath: .b}]}`, ``), []string{"additionalPrinterColumns[1]: Duplicate"}},
		change{"a column without anything", ``, with(`{name: v1, storage: true, schema: {}, additionalPrinterColumns: [{}]}`, ``), []string{"name: Required", "type: Required", "jsonPath: Required"}},
		change{"an empty scale", ``, with(`{name: v1, storage: true, schema: {}, subresources: {scale: {}}}`, ``), []string{"specReplicasPath: Required", "statusReplicasPath: Required"}},
		change{"an empty selectable field", ``, with(`{name: v1, storage: true, schema: {}, selectableFields: [{}]}`, ``), []string{"jsonPath: Required"}},
		change{"names like segments", ``, with(v1, `, nameValidation: PathSegmentName`), nil},
		change{"other names", ``, with(v1, `, nameValidation: Any`), []string{"nameValidation: Unsupported value"}},
		change{"a webhook", ``, with(v1, `, conversion: {strategy: Webhook, webhook: {clientConfig: {url: "https://a"}, conversionReviewVersions: [v1]}}`), nil},
		change{"no webhook", ``, with(v1, `, conversion: {strategy: Webhook}`), []string{webhook}},
		change{"a webhook that is not called", ``, with(v1, `, conversion: {strategy: None, webhook: {conversionReviewVersions: [v1]}}`), []string{webhook}},
		change{"an empty webhook", ``, with(v1, `, conversion: {strategy: Webhook, webhook: {}}`), []string{"conversionReviewVersions: Required"}},
		change{"a malformed URL", ``, with(v1, `, conversion: {strategy: Webhook, webhook: {clientConfig: {url: "a b"}, conversionReviewVersions: [v1]}}`), []string{"must be of type uri"}},
		change{"malformed certificates", ``, with(v1, `, conversion: {strategy: Webhook, webhook: {clientConfig: {caBundle: "?"}, conversionReviewVersions: [v1]}}`), []string{"must be of type byte"}},
		change{"another strategy", ``, with(v1, `, conversion: {strategy: Guess}`), []string{"strategy: Unsupported value"}},
	)
}

func TestConversionRules(t *testing.T) {
	const rule = `{field: a, destination: b}`
	runAll(t, load(t, apiConversions, "v1alpha1"),
		change{"both directions", ``, `spec: {conversions: [{from: v1, to: v2alpha3, rules: [` + rule + `]}, {from: v2alpha3, to: v1, rules: []}]}`, nil},
		change{"nothing", ``, ``, []string{"spec: Required"}},
		change{"no conversions", ``, `spec: {}`, []string{"conversions: Required"}},
		change{"a conversion without anything", ``, `spec: {conversions: [{}]}`, []string{"from: Required", "to: Required", "rules: Required"}},
		change{"a direction twice", ``, `spec: {conversions: [{from: v1, to: v2, rules: []}, {from: v1, to: v2, rules: []}]}`, []string{"conversions[1]: Duplicate"}},
		change{"malformed versions", ``, `spec: {conversions: [{from: "1", to: v2-, rules: []}]}`, []string{"from in body should match", "to in body should match"}},
		change{"a rule without anything", ``, `spec: {conversions: [{from: v1, to: v2, rules: [{}]}]}`, []string{"field: Required", "destination: Required"}},
		change{"an empty rule", ``, `spec: {conversions: [{from: v1, to: v2, rules: [{field: "", destination: ""}]}]}`, []string{"field in body should be at least 1", "destination in body should be at least 1"}},
		change{"a destination twice", ``, `spec: {conversions: [{from: v1, to: v2, rules: [` + rule + `, ` + rule + `]}]}`, []string{"rules[1]: Duplicate"}},
	)
}

// endpointChanges are changes of the status of an endpoint slice with the given spec.
func endpointChanges(spec string) []change {
	with := func(status string) string { return spec + "\nstatus: " + status }
	const shards = "either matchAll must be true or selector must be set"
	return []change{
		{"addresses", ``, with(`{endpoints: [{url: a}, {url: b, shards: {matchAll: true}}, {url: c, shards: {selector: {matchLabels: {a: b}}}}]}`), nil},
		{"an address twice", ``, with(`{endpoints: [{url: a}, {url: a}]}`), []string{"endpoints[1]: Duplicate"}},
		{"no address", ``, with(`{endpoints: [{}]}`), []string{"url: Required"}},
		{"an empty address", ``, with(`{endpoints: [{url: ""}]}`), []string{"at least 1"}},
		{"no shards", ``, with(`{endpoints: [{url: a, shards: {}}]}`), []string{shards}},
		{"not all shards", ``, with(`{endpoints: [{url: a, shards: {matchAll: false}}]}`), []string{shards}},
		{"all shards and some", ``, with(`{endpoints: [{url: a, shards: {matchAll: true, selector: {}}}]}`), []string{shards}},
		{"an unchanged spec", spec, spec, nil},
		{"a removed spec", spec, ``, []string{"spec: Invalid value: spec cannot be removed once it is set"}},
	}
}

func TestEndpointSliceRules(t *testing.T) {
	d := load(t, endpointSlices, "v1alpha1")
	const spec = `spec: {export: {path: "root:a", name: b}}`
	const changed = "APIExport reference must not be changed"
	runAll(t, d, endpointChanges(spec)...)
	runAll(t, d,
		change{"nothing", ``, ``, nil},
		change{"an empty spec", ``, `spec: {}`, []string{"export: Required"}},
		change{"no name", ``, `spec: {export: {}}`, []string{"name: Required"}},
		change{"a malformed path", ``, `spec: {export: {name: a, path: ":root"}}`, []string{"should match"}},
		change{"another partition", spec, `spec: {export: {path: "root:a", name: b}, partition: c}`, nil},
		change{"another export", spec, `spec: {export: {path: "root:a", name: c}}`, []string{changed}},
		change{"another path", spec, `spec: {export: {name: b}}`, []string{changed}},
	)
}
