package watchcache

import (
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "sigs.k8s.io/json"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/cacher"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/values"
	"github.com/unforked/kcp/internal/storage/watches"
)

func newRaw() runtime.Object     { return &watches.Raw{} }
func newRawList() runtime.Object { return &watches.RawList{} }

// rawCodec reads the metadata of custom resources. It never fails: what it cannot read is
// empty, and fails when the object is decoded.
type rawCodec struct{ stamps *values.Stamps }

func (rawCodec) Identifier() runtime.Identifier { return "raw" }

func (rawCodec) Encode(o runtime.Object, w io.Writer) error {
	r, ok := o.(*watches.Raw)
	if !ok {
		return fmt.Errorf("%T in a cache of custom resources", o)
	}
	_, err := w.Write(r.Framed)
	return err
}

func (c rawCodec) Decode(framed []byte, _ *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	r, ok := into.(*watches.Raw)
	if !ok {
		r = &watches.Raw{}
	}
	var err error
	if *r, err = rawOf(append([]byte(nil), framed...), c.stamps); err != nil {
		return nil, nil, err
	}
	return r, &schema.GroupVersionKind{}, nil
}

// rawOf returns the raw of a framed value, which it keeps.
func rawOf(framed []byte, s *values.Stamps) (watches.Raw, error) {
	tail, value, err := values.CutFrame(framed)
	if err != nil {
		return watches.Raw{}, err
	}
	name, namespace, object, _ := keys.SplitTail(tail)
	var partial struct {
		Metadata struct {
			Labels map[string]string `json:"labels"`
		} `json:"metadata"`
	}
	// Unlike encoding/json this is case sensitive, as the decoder of the objects is. A
	// failure leaves the labels empty.
	if kjson.UnmarshalCaseSensitivePreserveInts(value, &partial) != nil {
		partial.Metadata.Labels = nil
	}
	r := watches.Raw{Framed: framed}
	r.Namespace, r.Name, r.Labels = namespace, object, partial.Metadata.Labels
	r.Annotations = s.Of(name)
	return r, nil
}

func rawAttrs(o runtime.Object) (labels.Set, fields.Set, error) {
	r, ok := o.(*watches.Raw)
	if !ok {
		return nil, nil, fmt.Errorf("%T in a cache of custom resources", o)
	}
	return r.Labels, fields.Set{"metadata.name": r.Name, "metadata.namespace": r.Namespace, cacher.ClusterIndex: string(cluster.Of(r))}, nil
}
