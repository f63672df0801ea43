package server

import (
	"net"
	"sync"
)

// nowhere is a listener without a socket, for a server that serves only its own process.
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

// Addr returns a TCP address: the options of upstream accept no other.
func (n *nowhere) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4zero} }

// unaddressed is nowhere with an address that upstream's log shows as in-process.
type unaddressed struct{ *nowhere }

func (unaddressed) Addr() net.Addr { return noAddress{} }

// noAddress has a host and a port, as upstream expects of every address.
type noAddress struct{}

func (noAddress) Network() string { return "in-process" }

func (noAddress) String() string { return "in-process:0" }
