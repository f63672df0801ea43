package store

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/version"
)

const (
	// connectTimeout bounds the wait for an etcd that does not answer at the start.
	connectTimeout = 10 * time.Second
	// A server that hangs without closing its connections is noticed after both.
	keepAliveEvery   = 10 * time.Second
	keepAliveTimeout = 3 * time.Second
	// reconnect is how long it takes at most to notice that a server is back.
	reconnect = 3 * time.Second
	// retries of a read that no server answers, which is a second or less: another
	// leader is found in that time.
	retries = 20
	// oldestEtcd reports the progress of a watch only once all changes were sent.
	oldestEtcd = "3.5.8"
)

// connect talks to an etcd outside this process, which others may write to.
func connect(ctx context.Context, e Etcd) (*backend, error) {
	secure, err := e.security()
	if err != nil {
		return nil, err
	}
	config := clientv3.Config{
		Endpoints: e.Servers, TLS: secure, Username: e.Username, Password: e.Password,
		DialTimeout: connectTimeout / 2, DialKeepAliveTime: keepAliveEvery, DialKeepAliveTimeout: keepAliveTimeout,
		MaxCallSendMsgSize: 2 * maxRequestSize, MaxUnaryRetries: retries,
		Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(failFast), grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: reconnect}, MinConnectTimeout: reconnect,
		})},
	}
	if err := e.greet(ctx, config); err != nil {
		return nil, err
	}
	client, err := clientv3.New(config)
	if err != nil {
		return nil, e.unusable(err)
	}
	client.KV = patient{client.KV}
	if err := e.quorum(ctx, client); err != nil {
		_ = client.Close() // what matters is why
		return nil, err
	}
	room := newGauge(client)
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	room.look(working)
	wg.Go(func() { room.watch(working) })
	if kept := e.history(); kept > 0 {
		wg.Go(func() { room.keepShort(working, kept) })
	}
	return &backend{client: client, shared: true, capacity: room.capacity, watcher: func() *clientv3.Client {
		c := clientv3.NewCtxClient(client.Ctx())
		c.KV, c.Lease, c.Watcher, c.Maintenance = client.KV, clientv3.NewLease(client), clientv3.NewWatcher(client), client.Maintenance
		return c
	}, close: func() {
		stop()
		wg.Wait()
		_ = client.Close() // reports nothing but that its context ended
	}}, nil
}

// failFast has requests fail while there is no connection, and tell why. By itself the
// client would wait for one, and in the end know that it took too long.
func failFast(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return invoke(ctx, method, req, reply, cc, append(opts, grpc.WaitForReady(false))...)
}

// security checks the settings, and returns how connections are secured; nil for not
// at all.
func (e Etcd) security() (*tls.Config, error) {
	secure := false
	for i, s := range e.Servers {
		u, err := url.Parse(s)
		if err != nil || u.Host == "" && u.Path == "" || u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "unix" && u.Scheme != "unixs" {
			return nil, fmt.Errorf("--etcd-servers: %q is not the URL of an etcd server; write it like https://etcd-1.example.com:2379", s)
		}
		tls := strings.HasSuffix(u.Scheme, "s")
		if i > 0 && tls != secure {
			return nil, errors.New("--etcd-servers: either all servers use TLS or none does")
		}
		secure = tls
	}
	if !secure {
		if e.CAFile != "" || e.CertFile != "" || e.KeyFile != "" {
			return nil, errors.New("--etcd-cafile, --etcd-certfile and --etcd-keyfile need --etcd-servers that begin with https://")
		}
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if e.CAFile != "" {
		pem, err := os.ReadFile(e.CAFile)
		if err != nil {
			return nil, fmt.Errorf("--etcd-cafile: %w", err)
		}
		if config.RootCAs = x509.NewCertPool(); !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--etcd-cafile: there is no certificate in %s", e.CAFile)
		}
	}
	if (e.CertFile == "") != (e.KeyFile == "") {
		return nil, errors.New("--etcd-certfile and --etcd-keyfile go together; give both or none")
	}
	if e.CertFile == "" {
		return config, nil
	}
	load := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(e.CertFile, e.KeyFile)
		return &pair, err
	}
	if _, err := load(); err != nil {
		return nil, fmt.Errorf("--etcd-certfile and --etcd-keyfile: %w", err)
	}
	// Read for each connection, so that they can be renewed while the server runs.
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	return config, nil
}

// greet finds out whether any of the servers answers, and lets this client in, and that
// those are new enough.
func (e Etcd) greet(ctx context.Context, config clientv3.Config) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	config.MaxUnaryRetries = 1 // with more, all that is known in the end is that it took too long
	answered := false
	var errs []error
	for _, server := range e.Servers {
		version, err := e.version(ctx, config, server)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", server, reason(err)))
		case version != "" && older(version, oldestEtcd):
			return fmt.Errorf("--etcd-servers: %s is etcd %s; at least %s is needed", server, version, oldestEtcd)
		default:
			answered = true
		}
	}
	if answered {
		return nil
	}
	return e.unusable(errors.Join(errs...))
}

// version asks a server for its version, which may be told to administrators only:
// then it is empty.
func (e Etcd) version(ctx context.Context, config clientv3.Config, server string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout/time.Duration(len(e.Servers)+1))
	defer cancel()
	config.Endpoints = []string{server}
	client, err := clientv3.New(config)
	if err != nil {
		return "", err
	}
	defer func() { _ = client.Close() }() // reports nothing but that its context ended
	is, err := client.Status(ctx, server)
	if errors.Is(err, rpctypes.ErrPermissionDenied) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return is.Version, nil
}

func older(v, than string) bool {
	is, err := version.ParseSemantic(v)
	return err == nil && is.LessThan(version.MustParseSemantic(than))
}

// quorum finds out whether the servers can serve, and serve this client.
func (e Etcd) quorum(ctx context.Context, client *clientv3.Client) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	for {
		_, err := client.Get(ctx, "\x00", clientv3.WithCountOnly())
		switch {
		case err == nil, errors.Is(err, rpctypes.ErrPermissionDenied):
			return nil // what it needs is below its prefix
		case ctx.Err() != nil || !apierrors.IsServiceUnavailable(err):
			return e.unusable(err)
		}
	}
}

// unusable tells that the servers cannot be used, in one line.
func (e Etcd) unusable(err error) error {
	at := strings.Join(e.Servers, ",")
	err = errors.New(strings.ReplaceAll(reason(err).Error(), "\n", "; "))
	says := func(known error) bool { return strings.Contains(err.Error(), known.Error()) }
	switch {
	case says(rpctypes.ErrUserEmpty), says(rpctypes.ErrAuthFailed), says(rpctypes.ErrInvalidAuthToken):
		return fmt.Errorf("etcd at %s does not let the server in: %w; check --etcd-username and its password, or the client certificate", at, err)
	case strings.Contains(err.Error(), "x509:") || strings.Contains(err.Error(), "tls:") || hangsUp(err) && strings.HasPrefix(e.Servers[0], "https:"):
		return fmt.Errorf("no secure connection to etcd at %s: %w; check --etcd-cafile, --etcd-certfile, --etcd-keyfile and the names in the certificate of etcd", at, err)
	}
	return fmt.Errorf("cannot reach etcd at %s: %w; check --etcd-servers, and that etcd runs there and has a quorum", at, err)
}

// hangsUp reports whether a server ended the connection. One that refuses the
// certificate of a client says why just before, which is lost if the client was writing.
func hangsUp(err error) bool {
	return slices.ContainsFunc([]string{"broken pipe", "connection reset", "EOF"}, func(s string) bool { return strings.Contains(err.Error(), s) })
}

// reason returns what of an error of the connection tells people anything, in one line.
func reason(err error) error {
	err = rpctypes.Error(err) // which tells what etcd knows by code
	text := err.Error()
	if s, ok := grpcstatus.FromError(err); ok && s.Code() != codes.OK {
		text = s.Message()
	}
	if i := strings.LastIndex(text, `desc = "transport: `); i >= 0 {
		text = strings.TrimSuffix(text[i+len(`desc = "transport: `):], `"`)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		text = "it does not answer"
	}
	if text == err.Error() {
		return err
	}
	return errors.New(text)
}
