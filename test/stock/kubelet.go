package stock

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	constants "k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/client-go/kubernetes"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

// Node is the name of the node that [ControlPlane.StartKubelet] adds.
const Node = "node-of-the-owner"

// NodeAddress is the address that pods of the node report. Nothing listens there.
const NodeAddress = "192.0.2.77"

// A kubelet answers for the containers of a node. There are no containers: a command runs on this
// machine, in a folder of its pod. Logs say which pod they are of. The protocols are those of a
// kubelet, with the code that kubelets and runtimes use.
type kubelet struct {
	dir string
}

// StartKubelet adds a node whose kubelet serves logs, exec, attach and port-forward, and makes
// RunPods bind pods to it. Call it before RunPods. stop ends the kubelet.
func (c *ControlPlane) StartKubelet(ctx context.Context) (stop func(), err error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	pair, err := tls.LoadX509KeyPair(c.file("server.crt"), c.file("server.key"))
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	k := &kubelet{dir: c.file("pods")}
	serving := &http.Server{Handler: k.handler(), ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: time.Minute,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"}}}
	running, end := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { _ = serving.ServeTLS(l, "", "") }) // ends with Close
	stop = func() { end(); _ = serving.Close(); work.Wait() }
	port, _ := l.Addr().(*net.TCPAddr)
	client, err := kubernetes.NewForConfig(c.Config(AdminToken))
	if err == nil {
		err = addNode(ctx, client, int32(port.Port))
	}
	if err != nil {
		stop()
		return nil, err
	}
	c.node = Node
	work.Go(func() { renew(running, client) })
	return stop, nil
}

func addNode(ctx context.Context, client kubernetes.Interface, port int32) error {
	n, err := client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: Node}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
	n.Status.DaemonEndpoints.KubeletEndpoint.Port = port
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}}
	_, err = client.CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{})
	return err
}

// renew keeps the node ready.
func renew(ctx context.Context, client kubernetes.Interface) {
	leases := client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	t := time.NewTicker(10 * time.Second)
	defer t.Stop()
	for {
		now := metav1.NowMicro()
		l, err := leases.Get(ctx, Node, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			_, _ = leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: Node},
				Spec: coordinationv1.LeaseSpec{RenewTime: &now, LeaseDurationSeconds: new(int32(40))}}, metav1.CreateOptions{}) // tried again
		case err == nil:
			l.Spec.RenewTime = &now
			_, _ = leases.Update(ctx, l, metav1.UpdateOptions{}) // tried again
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

func (k *kubelet) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/containerLogs/{namespace}/{pod}/{container}", k.logs)
	protocols := []string{constants.StreamProtocolV4Name, constants.StreamProtocolV3Name, constants.StreamProtocolV2Name, constants.StreamProtocolV1Name}
	const idle, creation = time.Hour, 30 * time.Second
	for _, what := range []string{"exec", "attach"} {
		mux.HandleFunc("/"+what+"/{namespace}/{pod}/{container}", func(w http.ResponseWriter, req *http.Request) {
			o, err := remotecommand.NewOptions(req)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			in, container := k.folder(req), req.PathValue("container")
			if what == "exec" {
				remotecommand.ServeExec(w, req, k, in, "", container, req.URL.Query()["command"], o, idle, creation, protocols)
			} else {
				remotecommand.ServeAttach(w, req, k, in, "", container, o, idle, creation, protocols)
			}
		})
	}
	mux.HandleFunc("/portForward/{namespace}/{pod}", func(w http.ResponseWriter, req *http.Request) {
		o, err := portforward.NewV4Options(req)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		portforward.ServePortForward(w, req, k, k.folder(req), "", o, idle, creation, []string{portforward.ProtocolV1Name})
	})
	return mux
}

// folder returns the folder of a pod.
func (k *kubelet) folder(req *http.Request) string {
	return filepath.Join(k.dir, req.PathValue("namespace"), req.PathValue("pod"))
}

// logs writes a line, or one every 100 ms if they are followed.
func (k *kubelet) logs(w http.ResponseWriter, req *http.Request) {
	which := "now"
	if req.FormValue("previous") == "true" {
		which = "before"
	}
	flush := http.NewResponseController(w)
	for i := 1; ; i++ {
		_, err := fmt.Fprintf(w, "%s/%s %s line %d\n", req.PathValue("pod"), req.PathValue("container"), which, i)
		if err != nil || req.FormValue("follow") != "true" || flush.Flush() != nil {
			return
		}
		select {
		case <-req.Context().Done():
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// ExecInContainer implements [remotecommand.Executor].
func (k *kubelet) ExecInContainer(ctx context.Context, pod, _, _ string, argv []string, in io.Reader, out, errs io.WriteCloser, tty bool, _ <-chan remotecommand.TerminalSize, _ time.Duration) error {
	if err := os.MkdirAll(pod, 0o700); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Env = pod, out, append(os.Environ(), "HOSTNAME="+filepath.Base(pod), "TTY="+strconv.FormatBool(tty))
	if errs != nil {
		cmd.Stderr = errs
	}
	if in != nil { // not cmd.Stdin: Run would wait for its end
		to, err := cmd.StdinPipe()
		if err != nil {
			return err
		}
		go func() { _, _ = io.Copy(to, in); _ = to.Close() }() // ends with the connection
	}
	err := cmd.Run()
	if exit := (&exec.ExitError{}); errors.As(err, &exit) {
		return &utilexec.CodeExitError{Err: err, Code: exit.ExitCode()}
	}
	return err
}

// AttachContainer implements [remotecommand.Attacher]. It sends back what it gets.
func (k *kubelet) AttachContainer(_ context.Context, pod, _, _ string, in io.Reader, out, _ io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize) error {
	if _, err := fmt.Fprintf(out, "attached to %s\n", filepath.Base(pod)); err != nil || in == nil {
		return err
	}
	_, err := io.Copy(out, in)
	return err
}

// PortForward implements [portforward.PortForwarder]. It sends the port and what it gets.
func (k *kubelet) PortForward(_ context.Context, pod, _ string, port int32, stream io.ReadWriteCloser) error {
	if _, err := fmt.Fprintf(stream, "%s:%d\n", filepath.Base(pod), port); err != nil {
		return err
	}
	_, err := io.Copy(stream, stream)
	return err
}
