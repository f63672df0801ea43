package watchcache

import (
	"bytes"
	"testing"

	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/values"
	"github.com/unforked/kcp/internal/storage/watches"
)

// FuzzRawDecode decodes any value in the cache of custom resources. The result must have the
// name of the key.
func FuzzRawDecode(f *testing.F) {
	f.Add(`{"metadata":{"name":"other","namespace":"n","labels":{"a":"b"},"annotations":{"kcp.io/cluster":"c9"},"resourceVersion":"7"}}`)
	f.Add(`{"Metadata":{"labels":{"a":"b"}}}`)
	f.Add(`{"metadata":{"labels":{"a":1}}}`)
	f.Add(`{"metadata":`)
	f.Add("")
	codec := rawCodec{values.NewStamps(func(cluster.Name) bool { return true })}
	f.Fuzz(func(t *testing.T, value string) {
		framed := values.AppendFrame(nil, "c1/ns/x", []byte(value))
		o, _, err := codec.Decode(framed, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		r := o.(*watches.Raw)
		if r.Namespace != "ns" || r.Name != "x" || cluster.Of(r) != "c1" || len(r.Annotations) != 1 || r.ResourceVersion != "" {
			t.Errorf("taken in as %s/%s in %v at %q", r.Namespace, r.Name, r.Annotations, r.ResourceVersion)
		}
		var back bytes.Buffer
		if err := codec.Encode(r, &back); err != nil || !bytes.Equal(back.Bytes(), framed) {
			t.Errorf("given back as %q, %v", back.Bytes(), err)
		}
	})
}
