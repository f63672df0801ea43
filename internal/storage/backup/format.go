// Package backup saves the content of the database at one revision to a file, and restores
// it. It hides the format of the file.
//
// A file begins with a line of text: the name of the format and a [Header] in JSON. The rest is
// compressed with gzip. It is a sequence of records: a type, a length and a value. The last
// record has the number of keys and the SHA-256 of everything before it. The values of
// objects are as in etcd, so what is encrypted there is encrypted in the file.
package backup

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

const (
	magic = "kcp-backup "
	// format is the version of the format that this package writes, and the newest that it reads.
	format = 1

	maxHeader = 64 << 10
	maxRecord = 64 << 20
)

// A kind is the type of a record.
type kind byte

const (
	isKey   kind = 'k' // a key with its value
	isLease kind = 'l' // a lease, which keys name
	isError kind = 'x' // the reason why the rest is missing
	isEnd   kind = 'e'
)

// A Header describes a backup.
type Header struct {
	// Format is the version of the format.
	Format int `json:"format"`
	// Version is the version of kcp that wrote the backup.
	Version string `json:"kcp"`
	// Time is the time at which the backup began.
	Time time.Time `json:"time"`
	// Revision is the revision of etcd that the backup has.
	Revision int64 `json:"revision"`
	// Prefix is the prefix of all keys.
	Prefix string `json:"prefix"`
	// Keys is the number of keys.
	Keys int64 `json:"keys"`
}

// A lease is the record of a lease.
type lease struct {
	ID      int64 `json:"id"`
	Seconds int64 `json:"seconds"` // until it ends
}

// An end is the last record.
type end struct {
	Keys   int64  `json:"keys"`
	SHA256 []byte `json:"sha256"` // of the header and all records before
}

// A writer writes a file.
type writer struct {
	packed *gzip.Writer
	sum    hash.Hash
	keys   int64
}

func newWriter(to io.Writer, h Header) (*writer, error) {
	text, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	line := append(append([]byte(magic), text...), '\n')
	if _, err := to.Write(line); err != nil {
		return nil, err
	}
	packed, err := gzip.NewWriterLevel(to, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	w := &writer{packed: packed, sum: sha256.New()}
	w.sum.Write(line)
	return w, nil
}

func (w *writer) record(k kind, value []byte) error {
	head := binary.AppendUvarint([]byte{byte(k)}, uint64(len(value)))
	for _, b := range [][]byte{head, value} {
		w.sum.Write(b)
		if _, err := w.packed.Write(b); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) key(kv *mvccpb.KeyValue) error {
	w.keys++
	value, err := kv.Marshal()
	if err != nil {
		return err
	}
	return w.record(isKey, value)
}

func (w *writer) lease(l lease) error {
	value, err := json.Marshal(l)
	if err != nil {
		return err
	}
	return w.record(isLease, value)
}

// finish writes the end, or the error for which the backup is not complete.
func (w *writer) finish(failed error) error {
	if failed != nil {
		return errors.Join(failed, w.record(isError, []byte(failed.Error())), w.packed.Close())
	}
	value, err := json.Marshal(end{Keys: w.keys, SHA256: w.sum.Sum(nil)})
	if err != nil {
		return err
	}
	return errors.Join(w.record(isEnd, value), w.packed.Close())
}

// A Reader reads a backup.
type Reader struct {
	Header Header

	records *bufio.Reader
	sum     hash.Hash
	keys    int64
}

// NewReader reads the header of a backup.
func NewReader(from io.Reader) (*Reader, error) {
	in := bufio.NewReaderSize(from, maxHeader)
	line, err := in.ReadSlice('\n')
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull) {
		return nil, err
	}
	text, ok := bytes.CutPrefix(line, []byte(magic))
	if !ok || err != nil {
		return nil, errors.New("this is not a backup of kcp")
	}
	r := &Reader{sum: sha256.New()}
	r.sum.Write(line)
	if err := json.Unmarshal(text, &r.Header); err != nil {
		return nil, damaged(fmt.Errorf("its header: %w", err))
	}
	if r.Header.Format != format {
		return nil, fmt.Errorf("the backup has format %d, written by kcp %s; this program reads format %d: restore it with the kcp that wrote it", r.Header.Format, r.Header.Version, format)
	}
	packed, err := gzip.NewReader(in)
	if err != nil {
		return nil, damaged(err)
	}
	r.records = bufio.NewReaderSize(packed, 1<<20)
	return r, nil
}

func damaged(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return errors.New("the backup is incomplete: its end is missing; use another one")
	}
	return fmt.Errorf("the backup is damaged: %w; use another one", err)
}

// next returns the next record. hashed is the sum of all records before it.
func (r *Reader) next() (k kind, value, hashed []byte, err error) {
	hashed = r.sum.Sum(nil)
	first, err := r.records.ReadByte()
	if err != nil {
		return 0, nil, nil, damaged(err)
	}
	length, err := binary.ReadUvarint(r.records)
	if err != nil {
		return 0, nil, nil, damaged(err)
	}
	if length > maxRecord {
		return 0, nil, nil, damaged(fmt.Errorf("a record of %d bytes", length))
	}
	value = make([]byte, length)
	if _, err := io.ReadFull(r.records, value); err != nil {
		return 0, nil, nil, damaged(err)
	}
	r.sum.Write(binary.AppendUvarint([]byte{first}, length))
	r.sum.Write(value)
	return kind(first), value, hashed, nil
}

// A Sink gets the content of a backup.
type Sink interface {
	Put(kv *mvccpb.KeyValue) error
	Lease(id, seconds int64)
}

// Read reads everything into sink. If it returns an error, sink has got a part only. progress is
// called with the number of keys so far; nil is allowed.
func (r *Reader) Read(sink Sink, progress func(keys int64)) error {
	for {
		k, value, hashed, err := r.next()
		if err != nil {
			return err
		}
		switch k {
		case isKey:
			kv := &mvccpb.KeyValue{}
			if err := kv.Unmarshal(value); err != nil {
				return damaged(err)
			}
			switch err := sink.Put(kv); {
			case errors.Is(err, context.Canceled):
				return err
			case err != nil:
				return damaged(err)
			}
			if r.keys++; progress != nil {
				progress(r.keys)
			}
		case isLease:
			var l lease
			if err := json.Unmarshal(value, &l); err != nil {
				return damaged(err)
			}
			sink.Lease(l.ID, l.Seconds)
		case isError:
			return fmt.Errorf("the backup is incomplete: when it was made, the server failed: %s; use another one", value)
		case isEnd:
			return r.end(value, hashed)
		default:
			return damaged(fmt.Errorf("a record of the unknown type %q", byte(k)))
		}
	}
}

// end checks the last record.
func (r *Reader) end(value, hashed []byte) error {
	var last end
	if err := json.Unmarshal(value, &last); err != nil {
		return damaged(err)
	}
	if last.Keys != r.keys || last.Keys != r.Header.Keys {
		return damaged(fmt.Errorf("it has %d keys of %d", r.keys, last.Keys))
	}
	if !bytes.Equal(last.SHA256, hashed) {
		return damaged(errors.New("its checksum is wrong"))
	}
	if _, err := r.records.ReadByte(); !errors.Is(err, io.EOF) { // also checks the sum of gzip
		return damaged(fmt.Errorf("it goes on after its end: %w", err))
	}
	return nil
}
