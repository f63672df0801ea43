package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/unforked/kcp/test/child"
)

const (
	counted      = "/api/v1/namespaces/counted"
	countedNames = 1_000 // of config maps that come and go beside those that stay
)

// count fills a namespace up to its quota. Half of the config maps that come and go fit in.
func count(ctx context.Context, w *world) error {
	n := 50_000
	if w.short {
		n = 2_000
	}
	clients, err := child.Connect(ctx, w.as(ownerToken), 8)
	if err != nil {
		return err
	}
	defer child.CloseAll(clients)
	at := w.workspaces[0]
	namespace := strings.TrimPrefix(counted, "/api/v1/namespaces/")
	if err := post(ctx, clients[0], at+"/api/v1/namespaces", fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q}}`, namespace)); err != nil {
		return err
	}
	if err := post(ctx, clients[0], at+counted+"/resourcequotas", quotaOf("stays", n+countedNames/2)); err != nil {
		return err
	}
	var next atomic.Int64
	errs := make([]error, len(clients))
	var all sync.WaitGroup
	for i, c := range clients {
		all.Go(func() {
			for errs[i] == nil && int(next.Add(1)) <= n {
				if errs[i] = post(ctx, c, at+counted+"/configmaps", configMap(`"a":"b"`)); apierrors.IsForbidden(errs[i]) {
					errs[i] = fmt.Errorf("the quota is full too early: %w", errs[i])
				}
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func quotaOf(name string, n int) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"v1","kind":"ResourceQuota","metadata":{"name":%q},"spec":{"hard":{"count/configmaps":"%d"}}}`, name, n)
}

// recount creates and deletes a further quota, for which all objects must be counted again, and
// creates and deletes config maps near the limit.
func recount(t *target, i int) (method, path string, body []byte) {
	at, n := t.at(0)+counted, i/4
	switch i % 4 {
	case 0:
		return http.MethodPost, at + "/resourcequotas", quotaOf("comes", 100_000)
	case 1:
		return http.MethodDelete, at + "/resourcequotas/comes", nil
	case 2:
		return http.MethodPost, at + "/configmaps", fmt.Appendf(nil, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"comes-%d"}}`, n%countedNames)
	default:
		return http.MethodDelete, fmt.Sprintf("%s/configmaps/comes-%d", at, (n+countedNames/4)%countedNames), nil
	}
}
