package texts

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"golang.org/x/net/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/endpoints/handlers/finisher"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream/wsstream"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// The filters of the libraries log that a client left, or that a request took too long, in
// these words.
func TestClientLeft(t *testing.T) {
	lines := make(chan string, 100) // the filter logs in a goroutine of its own
	log := logr.New(sink{funcr.New(func(string, string) {}, funcr.Options{}).GetSink(), lines})
	resolver := &request.RequestInfoFactory{}
	aborted := genericfilters.WithPanicRecovery(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), resolver)
	ctx, leave := context.WithCancel(klog.NewContext(t.Context(), log))
	late := genericfilters.WithTimeoutForNonLongRunningRequests(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		leave()
		<-req.Context().Done()
		panic(http.ErrAbortHandler)
	}), func(*http.Request, *request.RequestInfo) bool { return false })
	for _, h := range []http.Handler{aborted, genericfilters.WithPanicRecovery(late, resolver)} {
		req := httptest.NewRequest(http.MethodGet, "/", nil)
		req = req.WithContext(request.WithRequestInfo(ctx, &request.RequestInfo{Path: "/"}))
		func() {
			defer func() { _ = recover() }() // the filter panics again, to close the connection
			h.ServeHTTP(httptest.NewRecorder(), req)
		}()
	}
	if line := <-lines; !ClientLeft(line) {
		t.Errorf("logged %q, which is not known", line)
	}
	if ClientLeft("Observed a panic") {
		t.Error("a panic is taken for a client that left")
	}
}

// The library logs the end of a stream over a WebSocket in these words, also if the server ends it.
func TestSocketEnded(t *testing.T) {
	lines := make(chan string, 100) // the library logs in a goroutine of its own
	log := logr.New(sink{funcr.New(func(string, string) {}, funcr.Options{}).GetSink(), lines})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		c := wsstream.NewConn(wsstream.NewDefaultChannelProtocols([]wsstream.ChannelType{wsstream.ReadChannel}))
		if _, _, err := c.Open(w, req.WithContext(klog.NewContext(req.Context(), log))); err != nil {
			t.Error(err)
			return
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}))
	defer s.Close()
	c, err := websocket.Dial("ws"+strings.TrimPrefix(s.URL, "http"), wsstream.ChannelWebSocketProtocol, s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if line := <-lines; !SocketEnded(line) {
		t.Errorf("logged %q, which is not known", line)
	}
	if SocketEnded("Unable to write frame") {
		t.Error("an error is taken for the end of a stream")
	}
}

// A panic of a write after the timeout of its request differs from an error in these words.
func TestLatePanic(t *testing.T) {
	lines := make(chan string, 100) // the library logs in a goroutine of its own
	klog.SetLogger(funcr.New(func(_, args string) { lines <- args }, funcr.Options{}))
	defer klog.ClearLogger()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for panics, write := range map[bool]finisher.ResultFunc{
		true:  func() (runtime.Object, error) { panic("it broke") },
		false: func() (runtime.Object, error) { return nil, errors.New("panicked: true, it broke") },
	} {
		answered := make(chan struct{})
		_, err := finisher.FinishRequest(ctx, func() (runtime.Object, error) {
			<-answered
			return write()
		})
		close(answered)
		if line := <-lines; err == nil || !strings.Contains(line, "it broke") || LatePanic(line) != panics {
			t.Errorf("%v; logged %q: panic %v", err, line, !panics)
		}
	}
}

// An object that does not fit its schema makes the library log these words.
func TestUnmanagedFields(t *testing.T) {
	var line string
	klog.SetLogger(funcr.New(func(_, args string) { line = args }, funcr.Options{}))
	defer klog.ClearLogger()
	gvk := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}
	manager, err := managedfields.NewDefaultCRDFieldManager(refusing{}, keeping{}, nil, nil, gvk, gvk.GroupVersion(), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "x"}}}
	manager.UpdateNoErrors(o, o.DeepCopy(), "test")
	if !UnmanagedFields(line) {
		t.Errorf("logged %q", line)
	}
	if UnmanagedFields(`"failed to update managedFields"`) {
		t.Error("another error is taken for it")
	}
}

// refusing converts nothing.
type refusing struct{ managedfields.TypeConverter }

func (refusing) ObjectToTyped(runtime.Object, ...typed.ValidationOptions) (*typed.TypedValue, error) {
	return nil, errors.New("it does not fit its schema")
}

// keeping converts an object to itself.
type keeping struct{ runtime.ObjectConvertor }

func (keeping) ConvertToVersion(o runtime.Object, _ runtime.GroupVersioner) (runtime.Object, error) {
	return o, nil
}

// sink records the messages of errors.
type sink struct {
	logr.LogSink
	lines chan<- string
}

func (s sink) Error(_ error, msg string, _ ...any) { s.lines <- msg }
func (s sink) WithValues(...any) logr.LogSink      { return s }
func (s sink) WithName(string) logr.LogSink        { return s }
func (s sink) WithCallDepth(int) logr.LogSink      { return s }

// gRPC reports failed connections in these words.
func TestConnections(t *testing.T) {
	secure := httptest.NewUnstartedServer(nil)
	secure.StartTLS()
	defer secure.Close()
	hangs, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer hangs.Close()
	go func() {
		for {
			c, err := hangs.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	call := func(at string, with credentials.TransportCredentials) error {
		c, err := grpc.NewClient(at, grpc.WithTransportCredentials(with))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, err = healthpb.NewHealthClient(c).Check(t.Context(), &healthpb.HealthCheckRequest{})
		return err
	}
	if err := call(secure.Listener.Addr().String(), credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12})); err == nil || !TLSFailed(err) {
		t.Errorf("a certificate of an unknown authority: %v", err)
	}
	if err := call(hangs.Addr().String(), insecure.NewCredentials()); err == nil || !HungUp(err) || TLSFailed(err) {
		t.Errorf("a connection that is closed at once: %v", err)
	}
	if known := errors.New("user name is empty"); !Says(fmt.Errorf("a; b: %w", known), known) || Says(errors.New("a"), known) {
		t.Error("the text of an error is not found in another")
	}
}
