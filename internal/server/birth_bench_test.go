package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/server"
)

// BenchmarkBirth creates workspaces as eight concurrent users, each with a first config map.
// It reports the processor time per workspace, including background work.
func BenchmarkBirth(b *testing.B) {
	s := start(b, b.TempDir())
	defer s.Close()
	grantRoot(b, s)
	client := &http.Client{Transport: s.InProcess("root", as("alice")).Transport}
	var n atomic.Int64
	birth := func() error {
		name := fmt.Sprint("w", n.Add(1))
		made, err := post(b.Context(), client, "root/apis/tenancy.kcp.io/v1alpha1/workspaces",
			`{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"`+name+`"}}`)
		if err != nil {
			return err
		}
		var ws struct{ Spec struct{ Cluster string } }
		if err := json.Unmarshal(made, &ws); err != nil {
			return err
		}
		if ws.Spec.Cluster == "" {
			return fmt.Errorf("%s", made)
		}
		_, err = post(b.Context(), client, ws.Spec.Cluster+"/api/v1/namespaces/default/configmaps",
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"first"},"data":{"k":"v"}}`)
		return err
	}
	for range 50 { // creates caches and other shared state
		if err := birth(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	b.SetParallelism(4)
	cpu := processTime()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			if err := birth(); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64((processTime()-cpu).Microseconds())/float64(b.N), "cpu-µs/op")
}

func grantRoot(b *testing.B, s *running) {
	b.Helper()
	client, err := kubernetes.NewForConfig(s.InProcess(string(cluster.Root), server.System()))
	if err != nil {
		b.Fatal(err)
	}
	if _, err := client.RbacV1().ClusterRoleBindings().Create(b.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "alice"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "alice"}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
	}, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
}

func post(ctx context.Context, client *http.Client, path, body string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://kcp/clusters/"+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	answer, err := io.ReadAll(resp.Body)
	if err == nil {
		err = resp.Body.Close()
	}
	if err == nil && resp.StatusCode != http.StatusCreated {
		err = fmt.Errorf("%s: %s", resp.Status, answer)
	}
	return answer, err
}
