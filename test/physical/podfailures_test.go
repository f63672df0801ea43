package physical

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/unforked/kcp/client"
	"github.com/unforked/kcp/test/stock"
)

// hidesAddresses expects that errors of nodes tell nothing about them.
func (s *tenant) hidesAddresses(t *testing.T) {
	for _, c := range s.clusters {
		c.breakNode(t, 1) // nothing listens there
		defer c.breakNode(t, 0)
	}
	all, _ := s.pods(t, metav1.ListOptions{})
	cfg := client.Cluster(s.config, "root:"+s.name)
	for _, p := range all {
		_, err := s.CoreV1().Pods("default").GetLogs(p.Name, &corev1.PodLogOptions{}).Stream(t.Context())
		if err == nil || !strings.Contains(err.Error(), "cannot reach the pod") {
			t.Errorf("logs: %v", err)
		}
		s.tellsNothing(t, fmt.Sprint(err))
		for _, spdy := range []bool{true, false} {
			_, _, err := s.run(t.Context(), cfg, p.Name, spdy, nil, "true")
			if err == nil || !strings.Contains(err.Error(), "cannot reach the pod") {
				t.Errorf("exec, SPDY %v: %v", spdy, err)
			}
			s.tellsNothing(t, fmt.Sprint(err))
		}
	}
}

// breakNode sets the port of the kubelet, or restores it.
func (c *cluster) breakNode(t *testing.T, port int32) {
	t.Helper()
	if port == 0 {
		port = c.kubelet
	}
	n, err := c.CoreV1().Nodes().Get(t.Context(), stock.Node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if c.kubelet == 0 {
		c.kubelet = n.Status.DaemonEndpoints.KubeletEndpoint.Port
	}
	n.Status.DaemonEndpoints.KubeletEndpoint.Port = port
	if _, err := c.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// warnsOfMissing expects that a cluster that hangs delays its own part only.
func (s *tenant) warnsOfMissing(t *testing.T) {
	before, _ := s.pods(t, metav1.ListOptions{})
	east := s.clusters["east"]
	east.signal(t, syscall.SIGSTOP)
	stopped := true
	resume := func() {
		if stopped {
			east.signal(t, syscall.SIGCONT)
		}
		stopped = false
	}
	defer resume()
	left, said := s.pods(t, metav1.ListOptions{})
	if len(left) != 2 || len(said) != 1 || !strings.Contains(said[0], `Location "default" does not answer: its pods are missing here (2 replicas are assigned to it); last known, at 2`) || !strings.HasSuffix(said[0], "deployment/web 2 of 2 ready") {
		t.Errorf("%d pods, warnings %q", len(left), said)
	}
	for _, p := range before {
		there := slices.ContainsFunc(left, func(of corev1.Pod) bool { return of.Name == p.Name })
		_, err := s.CoreV1().Pods("default").Get(t.Context(), p.Name, metav1.GetOptions{})
		if there && err != nil || !there && !apierrors.IsServiceUnavailable(err) {
			t.Errorf("get of %s, listed %v: %v", p.Name, there, err)
		}
	}
	resume()
	eventually(t, "all pods again", func() error {
		if now, said := s.pods(t, metav1.ListOptions{}); len(now) != 4 || len(said) > 0 {
			return fmt.Errorf("%d pods, %q", len(now), said)
		}
		return nil
	})
}

// throughAnother uses a second server, which does not run the loops.
func (s *tenant) throughAnother(t *testing.T) {
	second := s.shared("second", "west", nil)
	if err := second.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := second.Close(); err != nil {
			t.Error(err)
		}
	}()
	cfg, err := clientcmd.BuildConfigFromFlags("", second.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	s.streams(t, cfg)
}
