package crds_test

import (
	"strings"
	"testing"
)

func TestShardRules(t *testing.T) {
	runAll(t, load(t, "shards.core.kcp.io", "v1alpha1"),
		change{"addresses", ``, `spec: {baseURL: "https://a:1", externalURL: "https://b", virtualWorkspaceURL: "https://c/d"}`, nil},
		change{"an empty spec", ``, `spec: {}`, []string{"baseURL: Required"}},
		change{"empty addresses", ``, `spec: {baseURL: "", externalURL: "", virtualWorkspaceURL: ""}`, []string{
			"baseURL in body should be at least 1", "externalURL in body should be at least 1", "virtualWorkspaceURL in body should be at least 1",
			"spec.baseURL in body must be of type uri", "spec.externalURL in body must be of type uri", "spec.virtualWorkspaceURL in body must be of type uri"}},
		change{"malformed addresses", ``, `spec: {baseURL: a, externalURL: b, virtualWorkspaceURL: c}`, []string{"baseURL", "externalURL", "virtualWorkspaceURL"}},
		change{"capacity", ``, `status: {capacity: {cpu: "1", memory: 2, other: 3Gi}}`, nil},
		change{"malformed capacity", ``, `status: {capacity: {cpu: many}}`, []string{"should match"}},
	)
}

func TestPartitionRules(t *testing.T) {
	runAll(t, load(t, "partitions.topology.kcp.io", "v1alpha1"),
		change{"all shards", ``, `spec: {}`, nil},
		change{"nothing", ``, ``, []string{"spec: Required"}},
	)
}

func TestPartitionSetRules(t *testing.T) {
	labels := func(n int) string {
		return "{" + strings.Join(numbered(n, func(i string) string { return "k" + i + ": v" }), ", ") + "}"
	}
	expressions := func(n int) string {
		return "[" + strings.Join(numbered(n, func(i string) string { return "{key: k" + i + ", operator: Exists}" }), ", ") + "]"
	}
	with := func(selector string) string { return "spec: {shardSelector: {" + selector + "}}" }
	domain := strings.Repeat("a", 63)
	longest := strings.Join([]string{domain, domain, domain, domain[:61]}, ".") + "/" + domain // 317 characters
	runAll(t, load(t, "partitionsets.topology.kcp.io", "v1alpha1"),
		change{"all shards", ``, `spec: {}`, nil},
		change{"nothing", ``, ``, []string{"spec: Required"}},
		change{"ten labels", ``, with(`matchLabels: ` + labels(10)), nil},
		change{"eleven labels", ``, with(`matchLabels: ` + labels(11)), []string{"Too many"}},
		change{"ten expressions", ``, with(`matchExpressions: ` + expressions(10)), nil},
		change{"eleven expressions", ``, with(`matchExpressions: ` + expressions(11)), []string{"Too many"}},
		change{"long keys", ``, with(`matchLabels: {` + longest + `: ""}, matchExpressions: [{key: ` + longest + `, operator: Exists}]`), nil},
		change{"a malformed label key", ``, with(`matchLabels: {a/b/c: d}`), []string{"each key must be a label key"}},
		change{"a long label key", ``, with(`matchLabels: {` + longest + `a: d}`), []string{"each key must be a label key"}},
		change{"a malformed key", ``, with(`matchExpressions: [{key: -a, operator: Exists}]`), []string{"key must be a label key"}},
		change{"a long key", ``, with(`matchExpressions: [{key: ` + longest + `a, operator: Exists}]`), []string{"Too long", "key must be a label key"}},
		change{"an expression without anything", ``, with(`matchExpressions: [{}]`), []string{"key: Required", "operator: Required"}},
		change{"values", ``, with(`matchLabels: {a: ` + domain + `}, matchExpressions: [{key: a, operator: In, values: ["", a.b_c-D]}]`), nil},
		change{"malformed values", ``, with(`matchLabels: {a: "-"}, matchExpressions: [{key: a, operator: In, values: ["b c"]}]`), []string{"matchLabels.a in body should match", "values[0] in body should match"}},
		change{"long values", ``, with(`matchLabels: {a: ` + domain + `a}, matchExpressions: [{key: a, operator: In, values: [` + domain + `a]}]`), []string{"matchLabels.a: Too long", "values[0]: Too long"}},
	)
}

func numbered(n int, text func(string) string) (out []string) {
	for i := range n {
		out = append(out, text(string(rune('a'+i))))
	}
	return out
}

func TestCachedResourceRules(t *testing.T) {
	runAll(t, load(t, "clustercachedresources.cache.kcp.io", "v1alpha1"),
		change{"a resource", ``, `spec: {resource: widgets, group: example.org}`, nil},
		change{"nothing", ``, ``, []string{"spec: Required"}},
		change{"an empty spec", ``, `spec: {}`, []string{"resource: Required"}},
		change{"malformed names", ``, `spec: {resource: W, group: a.}`, []string{"resource in body should match", "group in body should match"}},
		change{"a phase", ``, "spec: {resource: widgets}\nstatus: {phase: Deleted}", nil},
		change{"another phase", ``, "spec: {resource: widgets}\nstatus: {phase: Done}", []string{"phase: Unsupported value"}},
		change{"empty counts", ``, "spec: {resource: widgets}\nstatus: {resourceCounts: {}}", []string{"cache: Required", "local: Required"}},
	)

	d := load(t, "clustercachedresourceendpointslices.cache.kcp.io", "v1alpha1")
	const export = `export: {path: "root:a", name: b}`
	const resource = `clusterCachedResource: {path: "root:a", name: c}`
	const spec = `spec: {` + export + `, ` + resource + `}`
	runAll(t, d, endpointChanges(spec)...)
	runAll(t, d,
		change{"no references", ``, `spec: {}`, []string{"export: Required", "clusterCachedResource: Required"}},
		change{"no names", ``, `spec: {export: {}, clusterCachedResource: {}}`, []string{"export.name: Required", "clusterCachedResource.name: Required"}},
		change{"malformed paths", ``, `spec: {export: {name: a, path: "root::a"}, clusterCachedResource: {name: a, path: A}}`, []string{"export.path in body should match", "clusterCachedResource.path in body should match"}},
		change{"another partition", spec, `spec: {` + export + `, ` + resource + `, partition: d}`, nil},
		change{"another export", spec, `spec: {export: {path: "root:a", name: z}, ` + resource + `}`, []string{"APIExport reference must not be changed"}},
		change{"another resource", spec, `spec: {` + export + `, clusterCachedResource: {name: c}}`, []string{"ClusterCachedResource reference must not be changed"}},
	)
}
