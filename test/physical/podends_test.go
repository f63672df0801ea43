//go:build unix

package physical

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/unforked/kcp/client"
)

// TestStreamsEnd expects that open streams of pods end when their workspace, the binding of the export, the export, or
// the compute workspace is deleted. Streams of another workspace go on.
func TestStreamsEnd(t *testing.T) {
	w := newWorld(t, "east")
	workspaces := schema.GroupVersionResource{Group: "tenancy.kcp.io", Version: "v1alpha1", Resource: "workspaces"}
	exports := bindingsOf.GroupVersion().WithResource("apiexports")
	remove := func(name string) func() error {
		return func() error {
			return dynamicFor(t, client.Cluster(w.config, "root")).Resource(workspaces).Delete(t.Context(), name, metav1.DeleteOptions{})
		}
	}
	ends := []struct {
		name, compute string
		end           func() error
	}{
		{"workspace", "stays", remove("workspace")},
		{"binding", "stays", func() error {
			return w.in(t, "binding").Resource(bindingsOf).Delete(t.Context(), "kubernetes", metav1.DeleteOptions{})
		}},
		{"export", "exported", func() error {
			return w.in(t, "exported").Resource(exports).Delete(t.Context(), "kubernetes", metav1.DeleteOptions{})
		}},
		{"compute", "goes", remove("goes")},
		{"other", "stays", nil},
	}
	open := map[string]map[string]<-chan error{}
	computes := map[string]bool{}
	for _, of := range ends {
		if !computes[of.compute] {
			computes[of.compute] = true
			w.compute(t, of.compute, "east")
		}
		s := w.shop(t, of.name, of.compute)
		s.create(t, "web", 1)
		s.rolledOut(t, "web")
		open[of.name] = s.opens(t)
	}
	for _, of := range ends {
		if of.end != nil {
			if err := of.end(); err != nil {
				t.Fatal(err)
			}
		}
	}
	const unbound = "the workspace does not bind the compute workspace of the pod any more; bind it again"
	const removed = "the compute workspace, its export or the physical cluster of the pod was removed; use another pod, or bind another compute workspace"
	says := map[string]string{
		"workspace": "the workspace (is being|was) deleted",
		"binding":   unbound,
		"export":    removed + "|" + unbound,
		"compute":   removed + "|" + unbound,
	}
	late, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for name, streams := range open {
		if name == "other" {
			continue
		}
		for what, ended := range streams {
			select {
			case err := <-ended:
				t.Logf("%s is deleted, %s: %v", name, what, err)
				if why := fmt.Sprint(err); what != "a watch" && what != "port-forward" && !regexp.MustCompile(says[name]).MatchString(why) {
					t.Errorf("%s is deleted, and %s says %q", name, what, why)
				}
			case <-late.Done():
				t.Errorf("%s is deleted, and %s goes on", name, what)
			}
		}
	}
	for what, ended := range open["other"] {
		select {
		case err := <-ended:
			t.Errorf("%s of another workspace has ended: %v", what, err)
		default:
		}
	}
}

// opens opens all kinds of streams of the pod of a workspace. Each has begun when it returns.
func (s *tenant) opens(t *testing.T) map[string]<-chan error {
	t.Helper()
	all, _ := s.pods(t, metav1.ListOptions{})
	if len(all) != 1 {
		t.Fatalf("%d pods", len(all))
	}
	pod, open := all[0].Name, map[string]<-chan error{}
	follow, err := s.CoreV1().Pods("default").GetLogs(pod, &corev1.PodLogOptions{Follow: true}).Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	open["a log"] = s.reads(t, follow)
	changes, err := s.CoreV1().Pods("default").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	watched := make(chan error, 1)
	go func() {
		for range changes.ResultChan() { // until the watch ends
		}
		watched <- nil
	}()
	open["a watch"] = watched
	for _, sub := range []string{"exec", "attach"} {
		for _, spdy := range []bool{true, false} {
			open[fmt.Sprintf("%s, SPDY %v", sub, spdy)] = s.holds(t, pod, sub, spdy)
		}
	}
	open["port-forward"] = s.holdsPort(t, pod)
	return open
}

// reads reads a log, which has begun, until it ends. It returns the last line as an error.
func (s *tenant) reads(t *testing.T, from io.Reader) <-chan error {
	t.Helper()
	if _, err := from.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		line := ""
		lines := bufio.NewScanner(from)
		for lines.Scan() {
			line = lines.Text()
		}
		ended <- errors.Join(errors.New(line), lines.Err())
	}()
	return ended
}

// drains reads a stream, which has begun, until it ends.
func drains(t *testing.T, from io.Reader) <-chan error {
	t.Helper()
	if _, err := from.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, from)
		ended <- err
	}()
	return ended
}

// subresource returns the configuration of a workspace, and the URL of a subresource of a pod.
func (s *tenant) subresource(pod, name string, o *corev1.PodExecOptions) (*rest.Config, *rest.Request) {
	req := s.CoreV1().RESTClient().Post().Namespace("default").Resource("pods").Name(pod).SubResource(name)
	if o != nil {
		req = req.VersionedParams(o, scheme.ParameterCodec)
	}
	return client.Cluster(s.config, "root:"+s.name), req
}

// holds runs a command that does not end, or attaches to a container.
func (s *tenant) holds(t *testing.T, pod, name string, overSPDY bool) <-chan error {
	t.Helper()
	o := &corev1.PodExecOptions{Stdin: true, Stdout: true}
	if name == "exec" {
		o.Command = []string{"cat"}
	}
	cfg, req := s.subresource(pod, name, o)
	var e remotecommand.Executor
	var err error
	if overSPDY {
		e, err = remotecommand.NewSPDYExecutor(cfg, http.MethodPost, req.URL())
	} else {
		e, err = remotecommand.NewWebSocketExecutor(cfg, http.MethodGet, req.URL().String())
	}
	if err != nil {
		t.Fatal(err)
	}
	input, in := io.Pipe()
	output, out := io.Pipe()
	t.Cleanup(func() { _ = in.Close() })
	ended := make(chan error, 1)
	go func() {
		err := e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: input, Stdout: out})
		_, _ = input.CloseWithError(io.EOF), out.CloseWithError(io.EOF)
		ended <- err
	}()
	go func() { _, _ = in.Write([]byte("x\n")) }()
	drains(t, output)
	return ended
}

// holdsPort forwards a port, and holds a connection to it.
func (s *tenant) holdsPort(t *testing.T, pod string) <-chan error {
	t.Helper()
	cfg, req := s.subresource(pod, "portforward", nil)
	through, upgrader, err := spdy.RoundTripperFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	conn, _, err := spdy.NewDialer(upgrader, &http.Client{Transport: through}, http.MethodPost, req.URL()).Dial(portforward.PortForwardProtocolV1Name)
	if err != nil {
		t.Fatal(err)
	}
	stream := func(kind string) httpstream.Stream {
		header := http.Header{}
		header.Set(corev1.PortHeader, "8080")
		header.Set(corev1.PortForwardRequestIDHeader, "1")
		header.Set(corev1.StreamType, kind)
		stream, err := conn.CreateStream(header)
		if err != nil {
			t.Fatal(err)
		}
		return stream
	}
	stream(corev1.StreamTypeError)
	drains(t, stream(corev1.StreamTypeData))
	ended := make(chan error, 1)
	go func() {
		<-conn.CloseChan()
		ended <- nil
	}()
	return ended
}
