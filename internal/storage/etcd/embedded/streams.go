package embedded

import (
	"context"
	"runtime"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy/adapter"
)

// streams holds the server side of all watch streams, so that they can be closed before etcd.
// In-process clients close without waiting for them. A stream that reads a previous value
// after etcd has closed its database would crash the process.
type streams struct {
	pb.WatchServer
	server *etcdserver.EtcdServer
	ctx    context.Context // of all streams; close cancels it
	cancel context.CancelFunc

	mu   sync.Mutex
	open sync.WaitGroup
}

func newStreams(s *etcdserver.EtcdServer) *streams {
	ctx, cancel := context.WithCancel(context.Background())
	return &streams{WatchServer: v3rpc.NewWatchServer(s), server: s, ctx: ctx, cancel: cancel}
}

// client returns an in-process client with its own watch stream.
func (s *streams) client() *clientv3.Client {
	c := v3client.New(s.server)
	c.Watcher = blank{clientv3.NewWatchFromWatchClient(adapter.WatchServerToWatchClient(s), c)}
	return c
}

// Watch implements [pb.WatchServer].
func (s *streams) Watch(stream pb.Watch_WatchServer) error {
	s.mu.Lock()
	if err := s.ctx.Err(); err != nil {
		s.mu.Unlock()
		return err
	}
	s.open.Add(1)
	s.mu.Unlock()
	defer s.open.Done()
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	in := &ending{Watch_WatchServer: stream, ctx: ctx, more: make(chan struct{}, 1), revision: s.server.KV().Rev}
	go in.receive() // returns when the stream ends, after this call
	return s.WatchServer.Watch(in)
}

// close ends all streams and waits for them.
func (s *streams) close() {
	s.mu.Lock()
	s.cancel()
	s.mu.Unlock()
	s.open.Wait()
}

// ending is a stream that ends with its own context and buffers requests. In-process streams
// are not buffered. When many watches end at once, the client would block on a request while
// the server blocks on a response.
type ending struct {
	pb.Watch_WatchServer
	ctx  context.Context
	more chan struct{} // capacity 1; signals a new request or an error
	// revision returns the revision that reads see.
	revision func() int64

	mu       sync.Mutex
	requests []*pb.WatchRequest
	err      error
}

// Context implements [pb.Watch_WatchServer].
func (e *ending) Context() context.Context { return e.ctx }

// Send implements [pb.Watch_WatchServer]. etcd sends an event a moment before a read sees its
// revision. A client that has the event must not read what is older.
func (e *ending) Send(r *pb.WatchResponse) error {
	for e.revision() < r.Header.GetRevision() && e.ctx.Err() == nil {
		runtime.Gosched()
	}
	return e.Watch_WatchServer.Send(r)
}

// receive buffers requests until the stream ends.
func (e *ending) receive() {
	for {
		r, err := e.Watch_WatchServer.Recv()
		e.mu.Lock()
		if e.err = err; err == nil {
			e.requests = append(e.requests, r)
		}
		e.mu.Unlock()
		select {
		case e.more <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

// Recv implements [pb.Watch_WatchServer].
func (e *ending) Recv() (*pb.WatchRequest, error) {
	for {
		e.mu.Lock()
		if len(e.requests) > 0 {
			r := e.requests[0]
			e.requests = e.requests[1:]
			e.mu.Unlock()
			return r, nil
		}
		err := e.err
		e.mu.Unlock()
		if err != nil {
			return nil, err
		}
		select {
		case <-e.more:
		case <-e.ctx.Done():
			return nil, e.ctx.Err()
		}
	}
}

// blank hides the values of contexts from the client, which opens one stream per text of a
// context.
type blank struct{ clientv3.Watcher }

type blankContext struct{ context.Context }

// String implements [fmt.Stringer].
func (blankContext) String() string { return "" }

// Watch implements [clientv3.Watcher].
func (b blank) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	return b.Watcher.Watch(blankContext{ctx}, key, opts...)
}
