package server

import (
	"net"
	"sync"
)

// nowhere is a listener that nobody can reach, for a server that only its own
// process talks to.
type nowhere struct {
	once   sync.Once
	closed chan struct{}
}

func newNowhere() *nowhere { return &nowhere{closed: make(chan struct{})} }

func (n *nowhere) Accept() (net.Conn, error) {
	<-n.closed
	return nil, net.ErrClosed
}

func (n *nowhere) Close() error {
	n.once.Do(func() { close(n.closed) })
	return nil
}

func (n *nowhere) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4zero} }
