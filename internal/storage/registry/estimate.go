package registry

import (
	"context"
	"strings"

	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/request/fair"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
)

type acceptKey struct{}

// WithAccept returns a context for a request with that Accept header: the memory of a list
// depends on its encoding.
func WithAccept(ctx context.Context, accept string) context.Context {
	if accept == "" || !strings.Contains(accept, "yaml") && !strings.Contains(accept, "as=") {
		return ctx // written as a stream
	}
	return context.WithValue(ctx, acceptKey{}, accept)
}

const (
	// yamlTimes is the memory of a list in YAML, per stored byte: for the JSON, the parsed
	// JSON, and the YAML in a buffer that grows by doubling.
	yamlTimes = 8
	// A list in JSON or protobuf is written as a stream, from objects in watch caches: it
	// takes the headers of the objects, and a part of the bytes at a time.
	streamedPart, streamedObject = 8, 1 << 10
	// Tables and lists of metadata are written as a whole. Annotations may be a large part
	// of the stored bytes.
	wholePart, wholeObject = 2, 4 << 10
	// unevenTimes is the assumed size of the objects on a page, in average objects: they
	// are known only after they are read.
	unevenTimes = 16

	// selectorTerm and selectorValue are the memory of a requirement of a selector and of one
	// of its values, without their text.
	selectorTerm, selectorValue = 512, 32
)

// growList counts the memory that a list takes until it is written. The memory of decoded
// custom resources is counted when they are decoded.
func (s *Storage) growList(ctx context.Context, o storage.ListOptions) error {
	accept, _ := ctx.Value(acceptKey{}).(string)
	if accept == "" && s.of.Resource.Root == keys.Custom {
		return nil
	}
	all := o
	all.Predicate.Limit = 0
	u := usage(ctx, s.store, s.resource(ctx), all)
	if limit := o.Predicate.Limit; limit > 0 && limit < u.Objects {
		u.Bytes, u.Objects = min(u.Bytes, u.Bytes/u.Objects*limit*unevenTimes), limit
	}
	return fair.Grow(ctx, memoryOf(u, accept))
}

// memoryOf estimates the bytes of memory that a list takes until it is written.
func memoryOf(u feed.Usage, accept string) int64 {
	switch {
	case strings.Contains(accept, "yaml"):
		return yamlTimes*u.Bytes + wholeObject*u.Objects
	case accept != "":
		return u.Bytes/wholePart + wholeObject*u.Objects
	default:
		return u.Bytes/streamedPart + streamedObject*u.Objects
	}
}

// growSelectors counts the selectors of a watch, for the time of the watch.
func growSelectors(ctx context.Context, p storage.SelectionPredicate) error {
	var bytes int64
	if p.Label != nil {
		requirements, _ := p.Label.Requirements()
		for _, r := range requirements {
			bytes += selectorTerm + int64(len(r.Key()))
			for _, value := range r.ValuesUnsorted() {
				bytes += selectorValue + int64(len(value))
			}
		}
	}
	if p.Field != nil {
		for _, r := range p.Field.Requirements() {
			bytes += selectorTerm + int64(len(r.Field)+len(r.Value))
		}
	}
	return fair.Grow(ctx, bytes)
}

// usage estimates the objects and bytes that a list of r in a cluster reads.
func usage(ctx context.Context, s *store.Store, r keys.Resource, o storage.ListOptions) feed.Usage {
	c, err := cluster.One(ctx)
	if err != nil || !o.Recursive {
		return feed.Usage{}
	}
	u := s.Feed().Ledger().Usage(c, r)
	if limit := o.Predicate.Limit; limit > 0 && limit < u.Objects {
		return feed.Usage{Objects: limit, Bytes: u.Bytes / u.Objects * limit}
	}
	return u
}

// Stored estimates the bytes that a list of r in a cluster reads from etcd.
func Stored(ctx context.Context, s *store.Store, r keys.Resource, o storage.ListOptions) int64 {
	return usage(ctx, s, r, o).Bytes
}
