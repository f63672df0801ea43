package server_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
)

// alive checks that requests of another tenant succeed.
func alive(t *testing.T, b *tenant, v visitor, name string) {
	t.Helper()
	const maps = "/api/v1/namespaces/default/configmaps"
	if got := v.send("POST", b.path(maps), `{"metadata":{"name":"`+name+`"}}`, "Content-Type", "application/json"); !got.ok() {
		t.Errorf("create: %d %s", got.code, got.body)
	}
	for _, target := range []string{maps, maps + "/" + name} {
		if got := v.send("GET", b.path(target), ""); !got.ok() {
			t.Errorf("%s: %d %s", target, got.code, got.body)
		}
	}
}

// slowBody returns a body whose end is not sent before ctx ends. begun waits until the server has
// read its beginning, or the body is closed, and open waits for its end.
func slowBody(ctx context.Context, open, begun *sync.WaitGroup) io.ReadCloser {
	reader, writer := io.Pipe()
	begun.Add(1)
	open.Go(func() {
		defer writer.Close()
		_, _ = io.WriteString(writer, `{"metadata":`) // fails if the body is closed first
		begun.Done()
		<-ctx.Done()
	})
	return reader
}

// Slow request bodies of one tenant do not delay other tenants.
func TestSlowBodiesHoldUpNobodyElse(t *testing.T) {
	t.Parallel()
	a, b := newTenant(t), newTenant(t)
	slow, other := a.owner(), b.owner()
	ctx, cancel := context.WithCancel(t.Context())
	var open sync.WaitGroup
	var begun sync.WaitGroup
	for range 300 {
		body := slowBody(ctx, &open, &begun)
		open.Go(func() {
			resp, err := slow.open(ctx, "POST", a.path("/api/v1/namespaces/default/configmaps"), body, "Content-Type", "application/json")
			_ = body.Close()
			if err == nil { // above the limit
				_ = resp.Body.Close()
				if resp.StatusCode != http.StatusTooManyRequests {
					t.Errorf("slow: %s", resp.Status)
				}
			}
		})
	}
	begun.Wait()
	alive(t, b, other, "beside")
	cancel()
	open.Wait()
}

// Slow bodies in many workspaces of one owner, more than the limit of requests in flight, do
// not delay other tenants.
func TestManyWorkspacesHoldUpNobodyElse(t *testing.T) {
	t.Parallel()
	o := server.DefaultOperation()
	o.Requests.MaxMutatingRequestsInFlight = 20
	s := operate(t, t.TempDir(), o)
	client := must(rest.HTTPClientFor(s.admin))(t)
	t.Cleanup(client.CloseIdleConnections)
	post := func(ctx context.Context, at cluster.Name, body io.Reader) (*http.Response, error) {
		target := "https://" + s.at + "/clusters/" + string(at) + "/api/v1/namespaces/default/configmaps"
		req := must(http.NewRequestWithContext(ctx, http.MethodPost, target, body))(t)
		req.Header.Set("Content-Type", "application/json")
		return client.Do(req)
	}
	quiet := s.workspace(t, "quiet")
	ctx, cancel := context.WithCancel(t.Context())
	var open, begun sync.WaitGroup
	for _, name := range []string{"a", "b", "c"} {
		greedy := s.workspace(t, name)
		for range 30 {
			body := slowBody(ctx, &open, &begun)
			open.Go(func() {
				resp, err := post(ctx, greedy, body)
				_ = body.Close()
				if err == nil {
					_ = resp.Body.Close()
				}
			})
		}
	}
	begun.Wait()
	for i := range 20 {
		resp, err := post(t.Context(), quiet, strings.NewReader(fmt.Sprintf(`{"metadata":{"name":"m%d"}}`, i)))
		if err != nil {
			t.Fatal(err)
		}
		if _ = resp.Body.Close(); resp.StatusCode != http.StatusCreated {
			t.Errorf("beside: %s", resp.Status)
		}
	}
	cancel()
	open.Wait()
}

// A thousand watches of one tenant, and 300 in make check, do not prevent watches of others.
func TestManyWatches(t *testing.T) {
	t.Parallel()
	a, b := newTenant(t), newTenant(t)
	greedy, other := a.owner(), b.owner()
	ctx, cancel := context.WithCancel(t.Context())
	var open sync.WaitGroup
	var begun sync.WaitGroup
	for i := range size(300, 1000) {
		resource := []string{"/api/v1/configmaps", "/api/v1/secrets", "/apis/tenancy.kcp.io/v1alpha1/workspaces", "/api/v1/events"}[i%4]
		begun.Add(1)
		open.Go(func() {
			resp, err := greedy.open(ctx, "GET", a.path(resource+"?watch=1"), strings.NewReader(""))
			begun.Done()
			if err != nil {
				return
			}
			defer resp.Body.Close()
			_, _ = io.Copy(io.Discard, resp.Body) // until it is cancelled
		})
	}
	begun.Wait()
	alive(t, b, other, "beside")
	alive(t, a, greedy, "watched")
	resp, err := other.open(ctx, "GET", b.path("/api/v1/namespaces/default/configmaps?watch=1&fieldSelector=metadata.name%3Dbeside"), strings.NewReader(""))
	if err != nil {
		t.Fatal(err)
	}
	if n, err := resp.Body.Read(make([]byte, 1)); n != 1 {
		t.Errorf("its own watch: %v", err)
	}
	_ = resp.Body.Close()
	cancel()
	open.Wait()
}

// Roles with thousands of aggregated rules do not make requests fail.
func TestManyRules(t *testing.T) {
	t.Parallel()
	a, b := newTenant(t), newTenant(t)
	if _, err := a.kube.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "view"}, Subjects: []rbacv1.Subject{{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: "system:serviceaccounts"}},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "admin"},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("many", i), Labels: map[string]string{"rbac.authorization.k8s.io/aggregate-to-view": "true"}}}
		for j := range 5000 {
			role.Rules = append(role.Rules, rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{fmt.Sprintf("s%d-%d", i, j)}})
		}
		if _, err := a.kube.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	v := a.owner()
	for range 20 {
		if got := v.send("GET", a.path("/api/v1/namespaces"), ""); !got.ok() {
			t.Errorf("%d %s", got.code, got.body)
		}
	}
	alive(t, b, b.owner(), "beside")
}
