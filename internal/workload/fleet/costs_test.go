package fleet_test

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/unforked/kcp"
	conditions "github.com/unforked/kcp/apis/conditions/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/internal/workload/fleet"
	"github.com/unforked/kcp/kcptest"
)

// server returns a server with the extension, which reaches servers on this machine.
func server(renew time.Duration) *kcp.Server {
	return &kcp.Server{Listen: "127.0.0.1:0", NoSync: true, EgressAllow: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")},
		Extensions: []kcp.Extension{fleet.Extension(fleet.Options{Renew: renew})}}
}

// TestNothingRegistered expects that the extension costs no goroutine, and so no watch, before the first
// SyncTarget, and that it works from then on.
func TestNothingRegistered(t *testing.T) {
	run(t, &kcp.Server{Listen: "127.0.0.1:0", NoSync: true}, func(*kcptest.Universe) {}) // libraries start goroutines of their own with the first server
	without := run(t, &kcp.Server{Listen: "127.0.0.1:0", NoSync: true}, func(*kcptest.Universe) {})
	with := run(t, server(300*time.Millisecond), func(u *kcptest.Universe) {
		c := compute(t, u)
		if stacks := stacks("internal/workload"); len(stacks) > 0 {
			t.Errorf("a compute workspace without SyncTargets has goroutines:\n%s", strings.Join(stacks, "\n\n"))
		}
		c.register(t, "east", "")
		seen := func(of *workload.SyncTarget) bool { return of.Status.Conditions.Get(conditions.Ready) != nil }
		c.wait(t, "east", seen)
		c.unregister(t, "east")
		eventually(t, func() error {
			if stacks := stacks("internal/workload"); len(stacks) > 0 {
				return fmt.Errorf("without its last SyncTarget, a compute workspace has goroutines:\n%s", strings.Join(stacks, "\n\n"))
			}
			return nil
		})
		for i := range 3 { // a SyncTarget that comes while the server ends its work is not missed
			name := fmt.Sprintf("west-%d", i)
			c.register(t, name, "")
			c.wait(t, name, seen)
			c.unregister(t, name)
		}
	})
	if with > without {
		t.Errorf("%d goroutines with the extension, %d without", with, without)
	}
}

// TestIdleTargets expects that a physical cluster that runs nothing costs the server no goroutine but those
// of its connection.
func TestIdleTargets(t *testing.T) {
	far := &kcptest.Universe{Server: &kcp.Server{Listen: "127.0.0.1:0", NoSync: true}}
	near := &kcptest.Universe{Server: server(5 * time.Second)} // so that there are moments without a probe
	t.Cleanup(func() {
		for _, u := range []*kcptest.Universe{near, far} {
			if err := u.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	c := compute(t, near)
	add := func(from, to int) {
		for i := from; i < to; i++ {
			c.register(t, fmt.Sprintf("t%d", i), kubeconfigOf(t, far))
		}
		for i := from; i < to; i++ {
			c.wait(t, fmt.Sprintf("t%d", i), func(of *workload.SyncTarget) bool { return of.Status.Conditions.IsTrue(conditions.Ready) })
		}
	}
	const of, many = "internal/workload/", 20
	add(0, 1)
	one, looks := stacks(of), 0
	eventually(t, func() error { // a probe has goroutines while it runs
		if now := stacks(of); len(now) < len(one) {
			one = now
		}
		if looks++; looks < 20 {
			return fmt.Errorf("looked %d times", looks)
		}
		return nil
	})
	add(1, many)
	eventually(t, func() error {
		if all := stacks(of); len(all) > len(one) {
			return fmt.Errorf("%d goroutines with one target, %d with %d:\n%s", len(one), len(all), many, strings.Join(all, "\n\n"))
		}
		return nil
	})
	eventually(t, func() error { // connections for the first look close
		if all := stacks("net/http.(*persistConn).readLoop"); len(all) > many+15 { // and those of the test and its servers
			return fmt.Errorf("%d connections for %d targets", len(all), many)
		}
		return nil
	})
}

// run starts a server, and returns the number of its goroutines before use is called.
func run(t *testing.T, s *kcp.Server, use func(*kcptest.Universe)) (idle int) {
	t.Helper()
	u := &kcptest.Universe{Server: s}
	if _, err := u.Start(); err != nil {
		t.Fatal(err)
	}
	last, times := -1, 0
	eventually(t, func() error {
		now := runtime.NumGoroutine()
		if times++; now != last {
			last, times = now, 0
		}
		if times < 15 {
			return fmt.Errorf("there are %d goroutines, and their number changes", now)
		}
		return nil
	})
	use(u)
	if err := u.Close(); err != nil {
		t.Fatal(err)
	}
	return last
}

// stacks returns the goroutines with a text in their stack, except those of tests.
func stacks(with string) (all []string) {
	buffer := make([]byte, 8<<20)
	for g := range bytes.SplitSeq(buffer[:runtime.Stack(buffer, true)], []byte("\n\n")) {
		if bytes.Contains(g, []byte(with)) && !bytes.Contains(g, []byte("testing.tRunner")) {
			all = append(all, string(g))
		}
	}
	return all
}

// eventually waits until check returns nil.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 2*kcptest.DefaultTimeout)
	defer stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatal(err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// A computing is a compute workspace.
type computing struct {
	*kcptest.Cluster
	targets *client.Client[*workload.SyncTarget, *workload.SyncTargetList]
}

// compute returns a logical cluster that binds the API of physical clusters.
func compute(t *testing.T, u *kcptest.Universe) computing {
	t.Helper()
	c := u.New(t)
	c.Apply(`
apiVersion: apis.kcp.io/v1alpha2
kind: APIBinding
metadata: {name: workload.kcp.io}
spec: {reference: {export: {path: root, name: workload.kcp.io}}}
---
apiVersion: v1
kind: Namespace
metadata: {name: ` + workload.TargetsNamespace + `}
`)
	return computingIn(t, c)
}

// computingIn returns a logical cluster that has the API of physical clusters.
func computingIn(t *testing.T, c *kcptest.Cluster) computing {
	t.Helper()
	targets, err := client.New[*workload.SyncTarget, *workload.SyncTargetList](c.Config, c.Name, workload.GroupVersion.WithResource("synctargets"))
	if err != nil {
		t.Fatal(err)
	}
	return computing{c, targets}
}

// register registers a physical cluster in push mode.
func (c computing) register(t *testing.T, name, kubeconfig string) {
	t.Helper()
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string][]byte{workload.KubeconfigKey: []byte(kubeconfig)}}
	secrets, err := client.New[*corev1.Secret, *corev1.SecretList](c.Config, c.Name, corev1.SchemeGroupVersion.WithResource("secrets"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := secrets.Namespace(workload.TargetsNamespace).Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	of := &workload.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: workload.SyncTargetSpec{Mode: workload.PushMode,
		Push: &workload.SyncTargetPush{KubeconfigSecretRef: workload.SecretReference{Namespace: workload.TargetsNamespace, Name: name}}}}
	if _, err := c.targets.Create(t.Context(), of, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// unregister deletes a SyncTarget, and waits until it is gone.
func (c computing) unregister(t *testing.T, name string) {
	t.Helper()
	if err := c.targets.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		_, err := c.targets.Get(t.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("SyncTarget %s exists: %v", name, err)
	})
}

func (c computing) wait(t *testing.T, name string, until func(*workload.SyncTarget) bool) {
	t.Helper()
	eventually(t, func() error {
		of, err := c.targets.Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && !until(of) {
			err = fmt.Errorf("the status of %s is %+v", name, of.Status)
		}
		return err
	})
}

// kubeconfigOf returns a kubeconfig of a new logical cluster, which plays a physical one.
func kubeconfigOf(t *testing.T, u *kcptest.Universe) string {
	t.Helper()
	return kubeconfigFor(t, u.New(t))
}

// kubeconfigFor returns a kubeconfig of a logical cluster.
func kubeconfigFor(t *testing.T, c *kcptest.Cluster) string {
	t.Helper()
	admin, err := clientcmd.BuildConfigFromFlags("", c.Server.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	at := client.Cluster(admin, c.Name)
	if err := rest.LoadTLSFiles(at); err != nil {
		t.Fatal(err)
	}
	return kubeconfig(t, at)
}

// kubeconfig returns a kubeconfig without references to files.
func kubeconfig(t *testing.T, at *rest.Config) string {
	t.Helper()
	text, err := clientcmd.Write(clientcmdapi.Config{
		CurrentContext: "it",
		Contexts:       map[string]*clientcmdapi.Context{"it": {Cluster: "it", AuthInfo: "it"}},
		Clusters:       map[string]*clientcmdapi.Cluster{"it": {Server: at.Host, CertificateAuthorityData: at.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"it": {Token: at.BearerToken, ClientCertificateData: at.CertData, ClientKeyData: at.KeyData}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
