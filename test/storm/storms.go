package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/unforked/kcp/test/child"
)

const (
	configMaps = "/api/v1/namespaces/default/configmaps"
	crds       = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	things     = "/apis/storm.example.com/v1/namespaces/default/things"

	selectorTerms = 54_000    // 530 KB
	largeBytes    = 950_000   // of a config map
	hugeBytes     = 2_900_000 // of an object, near the limit of etcd

	// A server refuses selectors of more than 100 requirements, and objects of more than 50,000 fields. Attacks with
	// fewer of them pass.
	servedTerms = 95
	servedKeys  = 49_000

	yamlWorkspaces   = 12
	dryRunWorkspaces = 20
	shapes           = 40
)

// A storm is one way to misuse a server.
type storm struct {
	name, what string
	of         []string // its attacks; if empty, the attack of its name
	prepare    []func(context.Context, *world) error
	slowEtcd   bool // the server has an external etcd, which becomes slow
	// least is how long it lasts at least, also in the short form.
	least time.Duration
	// served means that the server serves at least one of its requests.
	served bool
}

// storms returns all storms. The one that fills the store is the last, because storms of the
// short form share a server.
func storms() []storm {
	return []storm{
		{name: "reset", what: "4 connections that reset each stream at once (HTTP/2 rapid reset)"},
		{name: "selector", what: "530 KB labelSelector without a token, 200 in flight, in clusters that do not exist"},
		{name: "watches", what: "5,000 watches with a labelSelector of 530 KB"},
		{name: "keys", what: "config maps of 260,000 keys, 8 in flight, clients leave after 3 s"},
		{name: "terms", what: "5,000 watches with a labelSelector of 95 terms", served: true},
		{name: "members", what: "config maps of 49,000 keys, 8 in flight, clients leave after 3 s"},
		{name: "reachable", what: "/services/reachableworkspaces, 200 in flight"},
		{name: "dryrun", what: "2.9 MB custom resources with dryRun=All over 20 workspaces, 60 in flight", prepare: prepares(defineThings)},
		{name: "openapi", what: "OpenAPI v2 of 40 shapes, 80 in flight", prepare: prepares(defineShapes)},
		{name: "yaml", what: "lists of config maps in YAML over 12 workspaces, 48 in flight", prepare: prepares(fill)},
		{name: "webhooks", what: "config maps for 5 webhooks that never answer, 100 in flight", prepare: prepares(hookUp)},
		{name: "policies", what: "config maps of 1,000 keys for 20 policies that compare all pairs, 64 in flight", prepare: prepares(regulate),
			least: 7 * time.Second}, // requests wait for up to five seconds before they get 429
		{name: "quotas", what: "ResourceQuotas of 200 limits made and deleted beside leases, 100 in flight"},
		{name: "counted", what: "50,000 config maps under a quota (2,000 in the short form): another quota of them comes and goes, and config maps at the limit, 64 in flight", prepare: prepares(count)},
		{name: "strangers", what: "mixture: reset, selector, keys", of: []string{"reset", "selector", "keys"}},
		{name: "definitions", what: "mixture: watches, dryrun, openapi", of: []string{"watches", "dryrun", "openapi"}, prepare: prepares(defineThings, defineShapes)},
		{name: "lists", what: "mixture: yaml, bytes, reachable", of: []string{"yaml", "bytes", "reachable"}, prepare: prepares(fill)},
		{name: "bytes", what: "950 KB config maps into every workspace, 100 in flight"},
		{name: "etcd", what: "64 lists in flight while the external etcd answers 50 ms later", of: []string{"reads"}, slowEtcd: true},
	}
}

// withoutMixed returns the storms whose attack is in no mixture.
func withoutMixed(all []storm) []storm {
	mixed := map[string]bool{}
	for _, s := range all {
		for _, name := range s.of {
			mixed[name] = len(s.of) > 1
		}
	}
	return slices.DeleteFunc(all, func(s storm) bool { return len(s.of) == 0 && mixed[s.name] })
}

func prepares(all ...func(context.Context, *world) error) []func(context.Context, *world) error {
	return all
}

// attacks returns the attacks of child processes. Their requests are built once.
func attacks() map[string]func(context.Context, *target, *tally) error {
	selector := sync.OnceValue(func() string { return longSelector(selectorTerms) })
	keys := sync.OnceValue(func() []byte { return manyKeys(260_000) })
	members := sync.OnceValue(func() []byte { return manyKeys(servedKeys) })
	large := sync.OnceValue(func() []byte { return largeConfigMap(largeBytes) })
	huge := sync.OnceValue(hugeThing)
	pairs := sync.OnceValue(func() []byte { return labelled("policies", 1000) })
	return map[string]func(context.Context, *target, *tally) error{
		"reset": resets,
		"selector": flood{inFlight: 200, stranger: true, request: func(i int) (string, string, []byte) {
			return http.MethodGet, fmt.Sprintf("/clusters/%s%s?labelSelector=%s", strconv.FormatInt(1e15+int64(i), 36), configMaps, selector()), nil
		}}.run,
		"watches": flood{inFlight: 5000, each: func(t *target, i int) (string, string, []byte) {
			return http.MethodGet, t.at(i) + configMaps + "?watch=1&labelSelector=" + selector(), nil
		}}.run,
		"keys": flood{inFlight: 8, leave: 3 * time.Second, each: func(t *target, i int) (string, string, []byte) {
			return http.MethodPost, t.at(i) + configMaps, keys()
		}}.run,
		"terms": flood{inFlight: 5000, each: func(t *target, i int) (string, string, []byte) {
			return http.MethodGet, t.at(i) + configMaps + "?watch=1&labelSelector=" + longSelector(servedTerms), nil
		}}.run,
		"members": flood{inFlight: 8, leave: 3 * time.Second, each: func(t *target, i int) (string, string, []byte) {
			return http.MethodPost, t.at(i) + configMaps, members()
		}}.run,
		"reachable": flood{inFlight: 200, request: func(int) (string, string, []byte) {
			return http.MethodGet, "/services/reachableworkspaces", nil
		}}.run,
		"dryrun": flood{inFlight: 60, each: func(t *target, i int) (string, string, []byte) {
			return http.MethodPost, t.at(i%dryRunWorkspaces) + things + "?dryRun=All", huge()
		}}.run,
		"openapi": flood{inFlight: 80, each: func(t *target, i int) (string, string, []byte) {
			return http.MethodGet, t.at(i%min(shapes, len(t.Workspaces))) + "/openapi/v2", nil
		}}.run,
		"yaml": flood{inFlight: 48, accept: "application/yaml", each: func(t *target, i int) (string, string, []byte) {
			return http.MethodGet, t.at(i%yamlWorkspaces) + "/api/v1/configmaps", nil
		}}.run,
		"bytes": flood{inFlight: 100, each: func(t *target, i int) (string, string, []byte) {
			return http.MethodPost, t.at(i) + configMaps, large()
		}}.run,
		"webhooks": flood{inFlight: 100, each: func(t *target, i int) (string, string, []byte) {
			return http.MethodPost, t.at(i) + configMaps, labelled("webhooks", 1)
		}}.run,
		"policies": flood{inFlight: 64, each: func(t *target, i int) (string, string, []byte) {
			return http.MethodPost, t.at(i%regulated) + configMaps, pairs()
		}}.run,
		"quotas":  flood{inFlight: 100, each: churn}.run,
		"counted": flood{inFlight: 64, each: recount}.run,
		"reads": flood{inFlight: 64, each: func(t *target, i int) (string, string, []byte) {
			return http.MethodGet, t.at(0) + "/apis/rbac.authorization.k8s.io/v1/clusterroles", nil
		}}.run,
	}
}

// longSelector is a valid label selector of some terms, encoded for a query.
func longSelector(terms int) string {
	var b strings.Builder
	for i := range terms {
		fmt.Fprintf(&b, "k%d!=v,", i)
	}
	return strings.TrimSuffix(b.String(), ",")
}

func configMap(data string) []byte {
	return []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"storm-"},"data":{` + data + `}}`)
}

func largeConfigMap(size int) []byte { return configMap(`"a":"` + strings.Repeat("x", size) + `"`) }

func manyKeys(n int) []byte {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"%05s":"",`, strconv.FormatInt(int64(36*36*36*36+i), 36))
	}
	return configMap(strings.TrimSuffix(b.String(), ","))
}

// hugeThing is a custom resource that takes many times its size when it is decoded.
func hugeThing() []byte {
	return []byte(`{"apiVersion":"storm.example.com/v1","kind":"Thing","metadata":{"generateName":"storm-"},"spec":{"a":[` +
		strings.TrimSuffix(strings.Repeat(`{"a":{}},`, hugeBytes/9), ",") + `]}}`)
}

// fill creates config maps in the workspaces for YAML lists.
func fill(ctx context.Context, w *world) error {
	body := largeConfigMap(largeBytes)
	return w.each(ctx, yamlWorkspaces, func(ctx context.Context, c *child.Client, path string) error {
		for range max(1, w.stored/largeBytes) {
			if err := post(ctx, c, path+configMaps, body); err != nil {
				return err
			}
		}
		return nil
	})
}

func defineThings(ctx context.Context, w *world) error {
	return w.each(ctx, dryRunWorkspaces, func(ctx context.Context, c *child.Client, path string) error {
		return define(ctx, c, path, "thing")
	})
}

// defineShapes creates different definitions in each workspace.
func defineShapes(ctx context.Context, w *world) error {
	return w.each(ctx, shapes, func(ctx context.Context, c *child.Client, path string) error {
		return define(ctx, c, path, "shape"+path[strings.LastIndexAny(path, ":/")+1:])
	})
}

func define(ctx context.Context, c *child.Client, path, kind string) error {
	body, err := json.Marshal(map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": kind + "s.storm.example.com"},
		"spec": map[string]any{
			"group": "storm.example.com", "scope": "Namespaced",
			"names": map[string]any{"plural": kind + "s", "singular": kind, "kind": strings.ToUpper(kind[:1]) + kind[1:]},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{"openAPIV3Schema": map[string]any{
				"type": "object", "description": kind, "x-kubernetes-preserve-unknown-fields": true,
			}}}},
		},
	})
	if err != nil {
		return err
	}
	if err := post(ctx, c, path+crds, body); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return nil
}

// post creates an object. After a 429 it retries every second.
func post(ctx context.Context, c *child.Client, path string, body []byte) error {
	for {
		_, err := c.Call(ctx, http.MethodPost, path, child.JSON, body)
		if !apierrors.IsTooManyRequests(err) {
			return err
		}
		if err := child.Pause(ctx, time.Second); err != nil {
			return err
		}
	}
}
