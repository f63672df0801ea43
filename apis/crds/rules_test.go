package crds_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	logicalClusters = "logicalclusters.core.kcp.io"
	workspaces      = "workspaces.tenancy.kcp.io"
	workspaceTypes  = "workspacetypes.tenancy.kcp.io"

	workspaceAuthentications = "workspaceauthenticationconfigurations.tenancy.kcp.io"
)

func TestDefaults(t *testing.T) {
	for name, want := range map[string]map[string]any{
		logicalClusters: {
			"spec":   map[string]any{"directlyDeletable": false},
			"status": map[string]any{"phase": "Scheduling"},
		},
		workspaces: {
			"spec":   map[string]any{},
			"status": map[string]any{"phase": "Scheduling"},
		},
	} {
		d := load(t, name, "v1alpha1")
		o := d.object(t, `metadata: {name: cluster}`)
		got := map[string]any{"spec": o["spec"], "status": o["status"]}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if refusals := d.refusals(t, nil, o); len(refusals) > 0 {
			t.Errorf("%s: defaults alone are refused: %q", name, refusals)
		}
	}
}

// a change is what a client does, and a part of each cause for which it is refused.
type change struct {
	name     string
	old, new string // what follows the metadata; an empty old means that the object is created
	want     []string
}

func (c change) run(t *testing.T, d definition) {
	const metadata = "metadata: {name: cluster}\n"
	var old map[string]any
	if c.old != "" {
		old = d.object(t, metadata+c.old)
	}
	next := c.new
	if !strings.HasPrefix(next, "metadata:") {
		next = metadata + next
	}
	got := d.refusals(t, old, d.object(t, next))
	if len(got) != len(c.want) {
		t.Errorf("got %q, want %q", got, c.want)
	}
	for _, w := range c.want {
		if !slices.ContainsFunc(got, func(g string) bool { return strings.Contains(g, w) }) {
			t.Errorf("got %q, want one with %q", got, w)
		}
	}
}

func TestLogicalClusterRules(t *testing.T) {
	d := load(t, logicalClusters, "v1alpha1")
	const owner = `{apiVersion: tenancy.kcp.io/v1alpha1, resource: workspaces, name: a, cluster: root, uid: u}`
	for _, c := range []change{
		{"complete", ``, `
spec:
  createdBy: {username: alice, uid: "1", groups: [a, b], extra: {k: [v]}}
  directlyDeletable: true
  initializers: ["root:universal", "system:apibindings", "abc:def:x1"]
  terminators: ["root:a-b", "system:x!"]
  owner: ` + owner + `
status:
  URL: https://host/clusters/root
  phase: Ready
  conditions: [{type: Ready, status: "True", lastTransitionTime: "2026-01-02T03:04:05Z"}]
  initializers: ["system:apibindings"]
  terminators: ["root:universal"]
`, nil},
		{"another name", ``, `metadata: {name: other}`, []string{`metadata: Invalid value: a logical cluster has one LogicalCluster, and its name is "cluster"`}},
		{"owner of the core group", ``, `spec: {owner: {apiVersion: v1, resource: secrets, name: a, namespace: b, cluster: root, uid: u}}`, nil},
		{"owner without anything", ``, `spec: {owner: {}}`, []string{"apiVersion: Required", "resource: Required", "name: Required", "cluster: Required", "uid: Required"}},
		{"owner with nothing in it", ``, `spec: {owner: {apiVersion: a/b/c, resource: "", name: "", cluster: "", uid: ""}}`,
			[]string{"apiVersion: Invalid", "resource: Invalid", "name: Invalid", "cluster: Invalid"}},
		{"initializers of other forms", ``, `spec: {initializers: ["universal", "root:x", "root:Universal", "system:", ":xx", "root:universal:", "root:universal, root:team"]}`,
			[]string{"initializers[0]", "initializers[1]", "initializers[2]", "initializers[3]", "initializers[4]", "initializers[5]", "initializers[6]"}},
		{"terminator of another form", ``, `spec: {terminators: [x]}`, []string{"spec.terminators[0]"}},
		{"initializer of another form in the status", ``, `status: {initializers: [x]}`, []string{"status.initializers[0]"}},
		{"terminator of another form in the status", ``, `status: {terminators: [x]}`, []string{"status.terminators[0]"}},
		{"phase that there is not", ``, `status: {phase: Done}`, []string{"status.phase: Unsupported value"}},
		{"empty phase", ``, `status: {phase: ""}`, []string{"status.phase: Unsupported value"}},
		{"condition without anything", ``, `status: {conditions: [{}]}`, []string{"type: Required", "status: Required", "lastTransitionTime: Required"}},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, d) })
	}
}

func TestWorkspaceNames(t *testing.T) {
	d := load(t, workspaces, "v1alpha1")
	for name, ok := range map[string]bool{
		"a": true, "1": true, "a-b": true, strings.Repeat("a", 63): true,
		strings.Repeat("a", 64): false, "a.b": false, "-a": false, "a-": false, "A": false, "a:b": false, "~": false,
	} {
		c := change{name, ``, `metadata: {name: "` + name + `"}`, nil}
		if !ok {
			c.want = []string{"metadata: Invalid value: the name of a workspace must have 1 to 63"}
		}
		t.Run(name, func(t *testing.T) { c.run(t, d) })
	}
}

func TestWorkspaceFields(t *testing.T) {
	d := load(t, workspaces, "v1alpha1")
	for _, c := range []change{
		{"complete", ``, `
spec:
  URL: https://host/clusters/root:a
  cluster: abc
  location: {selector: {matchLabels: {region: eu}, matchExpressions: [{key: a, operator: In, values: [b]}]}}
  type: {name: universal, path: "root:org"}
status:
  phase: Ready
  conditions: [{type: WorkspaceScheduled, status: "False", severity: Error, reason: Unschedulable, message: none, lastTransitionTime: "2026-01-02T03:04:05Z"}]
  initializers: ["root:universal"]
  terminators: ["root:universal"]
`, nil},
		{"mount", ``, `spec: {mount: {ref: {apiVersion: a/v1, kind: K, name: one, namespace: x}}}`, nil},
		{"mount without anything", ``, `spec: {mount: {}}`, []string{"spec.mount.ref: Required"}},
		{"mount of nothing", ``, `spec: {mount: {ref: {}}}`, []string{"apiVersion: Required", "kind: Required", "name: Required"}},
		{"type without name", ``, `spec: {type: {path: root}}`, []string{"spec.type.name: Required"}},
		{"type that begins with a digit", ``, `spec: {type: {name: 1a, path: root}}`, []string{"spec.type.name: Invalid"}},
		{"type that cannot exist", ``, `spec: {type: {name: a_b, path: root}}`, nil},
		{"path of another form", ``, `spec: {type: {name: a, path: "root:"}}`, []string{"spec.type.path: Invalid"}},
		{"phase that there is not", ``, `status: {phase: Done}`, []string{"status.phase: Unsupported value"}},
		{"initializer of another form", ``, `status: {initializers: [x]}`, []string{"status.initializers[0]"}},
		{"terminator of another form", ``, `status: {terminators: [x]}`, []string{"status.terminators[0]"}},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, d) })
	}
}

func TestWorkspaceChanges(t *testing.T) {
	d := load(t, workspaces, "v1alpha1")
	const mounted = `spec: {mount: {ref: {apiVersion: a/v1, kind: K, name: one}}}`
	for _, c := range []change{
		{"URL is set", `spec: {}`, `spec: {URL: x}`, nil},
		{"URL changes", `spec: {URL: x}`, `spec: {URL: z}`, nil},
		{"URL is removed", `spec: {URL: x}`, `spec: {}`, []string{"spec: Invalid value: URL cannot be removed once it is set"}},
		{"URL is emptied", `spec: {URL: x}`, `spec: {URL: ""}`, []string{"URL cannot be removed once it is set"}},
		{"empty URL is removed", `spec: {URL: ""}`, `spec: {}`, nil},
		{"empty URL stays", `spec: {URL: ""}`, `spec: {URL: ""}`, nil},

		{"cluster is set", `spec: {}`, `spec: {cluster: a1}`, nil},
		{"cluster stays", `spec: {cluster: a1}`, `spec: {cluster: a1, URL: x}`, nil},
		{"cluster changes", `spec: {cluster: a1}`, `spec: {cluster: b1}`, []string{"spec.cluster: Invalid value: \"b1\": cluster cannot be changed"}},
		{"cluster is emptied", `spec: {cluster: a1}`, `spec: {cluster: ""}`, []string{"cluster cannot be changed"}},
		{"cluster is removed", `spec: {cluster: a1}`, `spec: {}`, []string{"spec: Invalid value: cluster cannot be removed once it is set"}},

		{"mount stays", mounted, mounted + "\nstatus: {phase: Ready}", nil},
		{"mount changes", mounted, `spec: {mount: {ref: {apiVersion: a/v1, kind: K, name: two}}}`, []string{"spec.mount: Invalid value: mount cannot be changed"}},
		{"mount gets a namespace", mounted, `spec: {mount: {ref: {apiVersion: a/v1, kind: K, name: one, namespace: x}}}`, []string{"mount cannot be changed"}},
		{"mount loses its apiVersion", mounted, `spec: {mount: {ref: {kind: K, name: one}}}`,
			[]string{"apiVersion: Required", "mount cannot be changed", "spec.mount.ref: Invalid value: apiVersion cannot be added or removed"}},
		{"mount loses its kind", mounted, `spec: {mount: {ref: {apiVersion: a/v1, name: one}}}`,
			[]string{"kind: Required", "mount cannot be changed", "spec.mount.ref: Invalid value: kind cannot be added or removed"}},
		{"mount loses its name", mounted, `spec: {mount: {ref: {apiVersion: a/v1, kind: K}}}`,
			[]string{"name: Required", "mount cannot be changed", "spec.mount.ref: Invalid value: name cannot be added or removed"}},

		{"type is set", `spec: {}`, `spec: {type: {name: a, path: root}}`, nil},
		{"type stays", `spec: {type: {name: a, path: root}}`, `spec: {type: {name: a, path: root}, URL: x}`, nil},
		{"type without path stays", `spec: {type: {name: a}}`, `spec: {type: {name: a}, URL: x}`, nil},
		{"name of the type changes", `spec: {type: {name: a, path: root}}`, `spec: {type: {name: b, path: root}}`,
			[]string{"spec.type: Invalid value: the name of the type cannot be changed"}},
		{"path of the type changes", `spec: {type: {name: a, path: root}}`, `spec: {type: {name: a, path: "root:b"}}`,
			[]string{"spec.type: Invalid value: the path of the type cannot be changed"}},
		{"path of the type is added", `spec: {type: {name: a}}`, `spec: {type: {name: a, path: root}}`,
			[]string{"spec.type: Invalid value: the path of the type cannot be added or removed"}},
		{"path of the type is removed", `spec: {type: {name: a, path: root}}`, `spec: {type: {name: a}}`,
			[]string{"spec.type: Invalid value: the path of the type cannot be added or removed"}},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, d) })
	}
}

func TestWorkspaceTypeRules(t *testing.T) {
	d := load(t, workspaceTypes, "v1alpha1")
	for _, c := range []change{
		{"empty", ``, ``, nil},
		{"complete", ``, `
spec:
  initializer: true
  extend: {with: [{name: universal}, {name: team, path: root}]}
  limitAllowedChildren: {none: true}
  limitAllowedParents: {types: [{name: team, path: "root:org"}]}
  defaultAPIBindingLifecycle: Maintain`, nil},
		{"named system", ``, "metadata: {name: system}\n", []string{"metadata: Invalid value: the names system and any are reserved"}},
		{"named any", ``, "metadata: {name: any}\n", []string{"reserved"}},
		{"named like no workspace", ``, "metadata: {name: a.b}\n", []string{"1 to 63 lower-case letters"}},
		{"no limit", ``, `spec: {limitAllowedParents: {}}`, []string{"exactly one of the fields"}},
		{"two limits", ``, `spec: {limitAllowedChildren: {none: true, types: [{name: a, path: root}]}}`, []string{"exactly one of the fields"}},
		{"an empty limit", ``, `spec: {limitAllowedChildren: {types: []}}`, []string{"at least 1 items"}},
		{"an unknown life cycle", ``, `spec: {defaultAPIBindingLifecycle: Sometimes}`, []string{"Unsupported value"}},
		{"a malformed path", ``, `spec: {extend: {with: [{name: a, path: "root:"}]}}`, []string{"should match"}},
		{"a malformed name", ``, `spec: {defaultChildWorkspaceType: {name: A, path: root}}`, []string{"should match"}},
		{"rules without verbs", ``, `spec: {initializerPermissions: [{resources: [secrets]}]}`, []string{"Required value"}},
		{"another kind of view", ``, `status: {virtualWorkspaces: [{url: "https://a", type: ready}]}`, []string{"Unsupported value"}},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, d) })
	}
}

func TestWorkspaceAuthenticationRules(t *testing.T) {
	d := load(t, workspaceAuthentications, "v1alpha1")
	const issuer = `issuer: {url: "https://login.example.com"}`
	with := func(more string) string { return "spec: {jwt: [{" + issuer + ", " + more + "}]}" }
	const none, both, prefix = "either claim or expression must be specified", "claim and expression cannot both be specified", "prefix can only be specified when claim is specified"
	for _, c := range []change{
		{"complete", ``, with(`claimMappings: {username: {claim: sub, prefix: ""}, groups: {expression: claims.groups}, uid: {claim: uid}, extra: [{key: a.com/b, valueExpression: "''"}]},
			claimValidationRules: [{claim: a, requiredValue: b}, {expression: "true", message: m}], userValidationRules: [{expression: "true", message: m}]`), nil},
		{"nothing", ``, ``, []string{"spec: Required"}},
		{"no providers", ``, `spec: {}`, []string{"spec.jwt: Required"}},
		{"a provider without anything", ``, `spec: {jwt: [{}]}`, []string{"issuer: Required", "claimMappings: Required"}},
		{"an issuer without URL", ``, `spec: {jwt: [{issuer: {}, claimMappings: {username: {claim: sub}}}]}`, []string{"issuer.url: Required"}},
		{"names from two sources", ``, with(`claimMappings: {username: {claim: sub, expression: claims.sub}}`), []string{both}},
		{"names from none", ``, with(`claimMappings: {username: {}}`), []string{none}},
		{"groups from two sources", ``, with(`claimMappings: {username: {claim: sub}, groups: {claim: g, expression: claims.g}}`), []string{both}},
		{"a prefix of an expression", ``, with(`claimMappings: {username: {expression: claims.sub, prefix: a}, groups: {expression: claims.g, prefix: a}}`), []string{prefix, prefix}},
		{"a UID from two sources", ``, with(`claimMappings: {username: {claim: sub}, uid: {claim: a, expression: claims.a}}`), []string{both}},
		{"a UID from none", ``, with(`claimMappings: {username: {claim: sub}, uid: {}}`), nil},
		{"an extra without value", ``, with(`claimMappings: {username: {claim: sub}, extra: [{key: a.com/b}]}`), []string{"valueExpression: Required"}},
		{"a rule of two kinds", ``, with(`claimMappings: {username: {claim: sub}}, claimValidationRules: [{claim: a, requiredValue: b, expression: "true", message: m}]`), []string{both}},
		{"a claim of any value", ``, with(`claimMappings: {username: {claim: sub}}, claimValidationRules: [{claim: a}]`), []string{"claim and requiredValue go together"}},
		{"an expression that says nothing", ``, with(`claimMappings: {username: {claim: sub}}, claimValidationRules: [{expression: "true"}]`), []string{"expression and message go together"}},
		{"a rule for users that says nothing", ``, with(`claimMappings: {username: {claim: sub}}, userValidationRules: [{expression: "true"}]`), []string{"message: Required"}},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, d) })
	}
}
