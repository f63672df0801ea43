// Package external connects to an etcd that other processes may use, too. It limits the duration of
// requests, answers at once while etcd does not, measures its space, and takes turns with other processes
// to compact its history.
package external

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/unforked/kcp/internal/storage/etcd/history"
	"github.com/unforked/kcp/internal/storage/etcd/outage"
	"github.com/unforked/kcp/internal/storage/etcd/space"
	"github.com/unforked/kcp/internal/upstream/texts"
)

const (
	// connectTimeout is the maximum wait for etcd to answer at the start.
	connectTimeout = 10 * time.Second
	// A server that hangs with open connections is detected after the sum of both.
	keepAliveEvery   = 10 * time.Second
	keepAliveTimeout = 3 * time.Second
	// reconnect is the maximum delay until a recovered server is used again.
	reconnect = 3 * time.Second
	// retries is the number of attempts at a read that no server answers. They take up to a
	// second, enough to elect a leader.
	retries = 20
	// OldestVersion is the oldest supported version of etcd. Older ones may report the progress of a
	// watch before they have sent all its changes.
	OldestVersion = "3.5.8"
)

// A Config selects an external etcd. The fields are those of the same names in the package above.
type Config struct {
	Servers                   []string
	CAFile, CertFile, KeyFile string
	Username, Password        string
	// Kept is how long the history of changes is kept; 0 if this process does not compact it.
	Kept time.Duration
	// MaxRequestBytes is the maximum size of a request.
	MaxRequestBytes int
}

// A Connection is a client of an external etcd, with its work in the background.
type Connection struct {
	// Client limits the duration of requests. Its errors are API statuses.
	Client *clientv3.Client
	// Capacity measures and limits the use of the database.
	Capacity *space.Capacity

	quota   *quota
	circuit *circuit
	stop    context.CancelFunc
	working sync.WaitGroup
}

// Connect connects to an external etcd, which other processes may write to. Its errors are one line, with
// the flags to check.
func Connect(ctx context.Context, c Config) (*Connection, error) {
	secure, err := c.security()
	if err != nil {
		return nil, err
	}
	config := clientv3.Config{
		Endpoints: c.Servers, TLS: secure, Username: c.Username, Password: c.Password,
		DialTimeout: connectTimeout / 2, DialKeepAliveTime: keepAliveEvery, DialKeepAliveTimeout: keepAliveTimeout,
		MaxCallSendMsgSize: 2 * c.MaxRequestBytes, MaxUnaryRetries: retries,
		Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(failFast), grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: reconnect}, MinConnectTimeout: reconnect,
		})},
	}
	if err := c.greet(ctx, config); err != nil {
		return nil, err
	}
	client, err := clientv3.New(config)
	if err != nil {
		return nil, c.unusable(err)
	}
	if err := c.quorum(ctx, client); err != nil {
		_ = client.Close() // err has the cause
		return nil, err
	}
	circuit := newCircuit(client.KV, client.Endpoints)
	client.KV = timeouts{client.KV, circuit}
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	of := &Connection{Client: client, quota: newQuota(client), circuit: circuit, stop: stop}
	of.Capacity = of.quota.Capacity
	of.quota.measure(working)
	of.working.Go(func() { of.quota.run(working) })
	if c.Kept > 0 {
		of.working.Go(func() { history.RunShared(working, client, c.Kept, of.quota.pressed) })
	}
	return of, nil
}

// Watcher returns a client with its own watch stream.
func (c *Connection) Watcher() *clientv3.Client {
	w := clientv3.NewCtxClient(c.Client.Ctx())
	w.KV, w.Lease, w.Watcher, w.Maintenance = c.Client.KV, clientv3.NewLease(c.Client), clientv3.NewWatcher(c.Client), c.Client.Maintenance
	return w
}

// Defragment defragments every member, one after the other, and then clears the alarm for lack of space if
// every member has enough. It returns the members done so far with an error.
func (c *Connection) Defragment(ctx context.Context) ([]space.Defragmented, error) {
	all, err := defragmentAll(ctx, c.Client)
	c.quota.measure(ctx)
	return all, err
}

// Close stops the work in the background, and the client.
func (c *Connection) Close() {
	c.stop()
	c.working.Wait()
	c.circuit.close()
	_ = c.Client.Close() // returns only the error of its cancelled context
}

// Client returns a client for diagnosis. The caller closes it.
func (c Config) Client(ctx context.Context) (*clientv3.Client, error) {
	secure, err := c.security()
	if err != nil {
		return nil, err
	}
	return clientv3.New(clientv3.Config{Endpoints: c.Servers, TLS: secure, Username: c.Username, Password: c.Password, DialTimeout: connectTimeout / 2, Context: ctx, Logger: zap.NewNop()})
}

// failFast makes requests fail at once, with the cause, while there is no connection. The
// client's default waits for a connection and returns only a timeout.
func failFast(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return invoke(ctx, method, req, reply, cc, append(opts, grpc.WaitForReady(false))...)
}

// greet checks that at least one server answers and accepts this client, and that all servers
// that answer are new enough.
func (c Config) greet(ctx context.Context, config clientv3.Config) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	config.MaxUnaryRetries = 1 // with more retries, the error would only be a timeout
	answered := false
	var errs []error
	for _, server := range c.Servers {
		version, err := c.version(ctx, config, server)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", server, outage.Reason(err)))
		case version != "" && Older(version, OldestVersion):
			return fmt.Errorf("--etcd-servers: %s is etcd %s; at least %s is needed", server, version, OldestVersion)
		default:
			answered = true
		}
	}
	if answered {
		return nil
	}
	return c.unusable(errors.Join(errs...))
}

// version returns the version of a server, or "" if only administrators may read it.
func (c Config) version(ctx context.Context, config clientv3.Config, server string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout/time.Duration(len(c.Servers)+1))
	defer cancel()
	config.Endpoints = []string{server}
	client, err := clientv3.New(config)
	if err != nil {
		return "", err
	}
	defer func() { _ = client.Close() }() // returns only the error of its cancelled context
	is, err := client.Status(ctx, server)
	if errors.Is(err, rpctypes.ErrPermissionDenied) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return is.Version, nil
}

// Older reports whether a version of etcd is older than another.
func Older(v, than string) bool {
	is, err := version.ParseSemantic(v)
	return err == nil && is.LessThan(version.MustParseSemantic(than))
}

// quorum checks that the servers serve consistent reads to this client.
func (c Config) quorum(ctx context.Context, client *clientv3.Client) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	for {
		attempt, done := context.WithTimeout(ctx, ReadTimeout)
		_, err := client.Get(attempt, "\x00", clientv3.WithCountOnly())
		done()
		switch {
		case err == nil, errors.Is(err, rpctypes.ErrPermissionDenied):
			return nil // this user may read only keys below the prefix
		case ctx.Err() != nil || !outage.Is(err):
			return c.unusable(err)
		}
	}
}

// unusable returns a one-line error with the reason and the flags to check.
func (c Config) unusable(err error) error {
	at := strings.Join(c.Servers, ",")
	err = errors.New(strings.ReplaceAll(outage.Reason(err).Error(), "\n", "; "))
	switch {
	case texts.Says(err, rpctypes.ErrUserEmpty), texts.Says(err, rpctypes.ErrAuthFailed), texts.Says(err, rpctypes.ErrInvalidAuthToken):
		return fmt.Errorf("etcd at %s does not let the server in: %w; check --etcd-username and its password, or the client certificate", at, err)
	case texts.TLSFailed(err), texts.HungUp(err) && strings.HasPrefix(c.Servers[0], "https:"):
		return fmt.Errorf("no secure connection to etcd at %s: %w; check --etcd-cafile, --etcd-certfile, --etcd-keyfile and the names in the certificate of etcd", at, err)
	}
	return fmt.Errorf("cannot reach etcd at %s: %w; check --etcd-servers, and that etcd runs there and has a quorum", at, err)
}
