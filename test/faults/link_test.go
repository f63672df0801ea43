package faults

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A link is a TCP proxy between one kcp and one member of etcd.
type link struct {
	to    string
	in    net.Listener
	delay atomic.Int64 // nanoseconds, for each direction
	cut   atomic.Bool
	gate  sync.RWMutex // whoever locks it holds all data back

	mu    sync.Mutex
	open  map[net.Conn]bool // guarded by mu; nil once closed
	until chan struct{}     // closed with the link
	all   sync.WaitGroup
}

// newLink starts a link that ends with the test.
func newLink(t *testing.T, to string) *link {
	t.Helper()
	in, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &link{to: to, in: in, open: map[net.Conn]bool{}, until: make(chan struct{})}
	l.all.Go(l.accept)
	t.Cleanup(l.close)
	return l
}

func (l *link) address() string { return l.in.Addr().String() }

// late delays data from now on.
func (l *link) late(d time.Duration) { l.delay.Store(int64(d)) }

// broken ends all connections, and refuses new ones while it is true.
func (l *link) broken(is bool) {
	l.cut.Store(is)
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		if is {
			_ = c.Close() // the other side may have closed it
		}
	}
}

func (l *link) close() {
	_ = l.in.Close() // only once
	l.broken(true)
	l.mu.Lock()
	l.open = nil
	l.mu.Unlock()
	close(l.until)
	l.all.Wait()
}

func (l *link) accept() {
	for {
		c, err := l.in.Accept()
		if err != nil {
			return
		}
		l.all.Go(func() { l.serve(c) })
	}
}

func (l *link) serve(c net.Conn) {
	defer c.Close()
	if l.cut.Load() {
		return
	}
	d, err := net.DialTimeout("tcp", l.to, time.Second)
	if err != nil {
		return
	}
	defer d.Close()
	l.mu.Lock()
	if l.open == nil || l.cut.Load() {
		l.mu.Unlock()
		return
	}
	l.open[c], l.open[d] = true, true
	l.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { l.pass(c, d) })
	both.Go(func() { l.pass(d, c) })
	both.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, c)
	delete(l.open, d)
}

// pass copies from one connection to the other until one of them ends, and closes both.
func (l *link) pass(from, to net.Conn) {
	type chunk struct {
		data []byte
		due  time.Time
	}
	chunks, ended := make(chan chunk, 1024), make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		defer from.Close()
		defer close(ended)
		for c := range chunks {
			select {
			case <-time.After(time.Until(c.due)):
			case <-l.until:
				return
			}
			l.gate.RLock()
			_, err := to.Write(c.data)
			l.gate.RUnlock()
			if err != nil {
				return
			}
		}
	})
	defer writer.Wait()
	defer to.Close()
	defer close(chunks)
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			select {
			case chunks <- chunk{append([]byte(nil), buffer[:n]...), time.Now().Add(time.Duration(l.delay.Load()))}:
			case <-ended:
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func TestLink(t *testing.T) {
	there, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var echo sync.WaitGroup
	echo.Go(func() {
		for {
			c, err := there.Accept()
			if err != nil {
				return
			}
			echo.Go(func() { _, _ = io.Copy(c, c); _ = c.Close() })
		}
	})
	defer echo.Wait()
	defer there.Close()
	l := newLink(t, there.Addr().String())
	say := func() (string, error) {
		c, err := net.Dial("tcp", l.address())
		if err != nil {
			return "", err
		}
		defer c.Close()
		if _, err := c.Write([]byte("hello")); err != nil {
			return "", err
		}
		b := make([]byte, 5)
		_, err = io.ReadFull(c, b)
		return string(b), err
	}
	const wait = 20 * time.Millisecond
	l.late(wait)
	began := time.Now()
	if s, err := say(); s != "hello" || err != nil || time.Since(began) < 2*wait {
		t.Errorf("%q, %v after %v", s, err, time.Since(began))
	}
	l.broken(true)
	if s, err := say(); err == nil {
		t.Errorf("%q through a link that is cut", s)
	}
	l.broken(false)
	if s, err := say(); s != "hello" || err != nil {
		t.Errorf("%q, %v", s, err)
	}
}
