package watchcache

import (
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "sigs.k8s.io/json"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/keys"
	"github.com/unforked/kcp/internal/values"
)

// A raw is a custom resource in a watch cache: the stored value, which every schema and
// version decodes when it is read, and the metadata by which the cache selects. The decoded
// object would be about thirty times as large.
type raw struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	framed []byte // never changed
	shared *shared
	object runtime.Object // of a native kind, decoded; shared
}

// DeepCopyObject implements [runtime.Object].
func (r *raw) DeepCopyObject() runtime.Object {
	c := *r
	return &c // what it points to never changes
}

// A rawList is a list of raws.
type rawList struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []raw
}

// DeepCopyObject implements [runtime.Object].
func (l *rawList) DeepCopyObject() runtime.Object {
	c := *l
	c.Items = append([]raw(nil), l.Items...)
	return &c
}

// copyMeta copies the metadata of the list for clients.
func (l *rawList) copyMeta(to metav1.ListInterface) {
	to.SetResourceVersion(l.ResourceVersion)
	to.SetContinue(l.Continue)
	to.SetRemainingItemCount(l.RemainingItemCount)
}

func newRaw() runtime.Object     { return &raw{} }
func newRawList() runtime.Object { return &rawList{} }

// rawCodec reads the metadata of custom resources. It never fails: what it cannot read is
// empty, and fails when the object is decoded.
type rawCodec struct{ stamps *values.Stamps }

func (rawCodec) Identifier() runtime.Identifier { return "raw" }

func (rawCodec) Encode(o runtime.Object, w io.Writer) error {
	r, ok := o.(*raw)
	if !ok {
		return fmt.Errorf("%T in a cache of custom resources", o)
	}
	_, err := w.Write(r.framed)
	return err
}

func (c rawCodec) Decode(framed []byte, _ *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	r, ok := into.(*raw)
	if !ok {
		r = &raw{}
	}
	var err error
	if *r, err = rawOf(append([]byte(nil), framed...), c.stamps); err != nil {
		return nil, nil, err
	}
	return r, &schema.GroupVersionKind{}, nil
}

// rawOf returns the raw of a framed value, which it keeps.
func rawOf(framed []byte, s *values.Stamps) (raw, error) {
	tail, value, err := values.CutFrame(framed)
	if err != nil {
		return raw{}, err
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
	r := raw{framed: framed}
	r.Namespace, r.Name, r.Labels = namespace, object, partial.Metadata.Labels
	r.Annotations = s.Of(name)
	return r, nil
}

func rawAttrs(o runtime.Object) (labels.Set, fields.Set, error) {
	r, ok := o.(*raw)
	if !ok {
		return nil, nil, fmt.Errorf("%T in a cache of custom resources", o)
	}
	return r.Labels, fields.Set{"metadata.name": r.Name, "metadata.namespace": r.Namespace, clusterIndex: string(cluster.Of(r))}, nil
}
