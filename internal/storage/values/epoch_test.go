package values

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A resource version leads back to its revision in its epoch alone. In epoch 0 it is the revision.
func TestEpochs(t *testing.T) {
	if got := Epoch(0).ResourceVersion(17); got != "17" {
		t.Errorf("revision 17 in epoch 0 is %s", got)
	}
	for _, e := range []Epoch{0, 1, 7, MaxEpoch} {
		for _, revision := range []int64{1, 17, 1<<revisionBits - 1} {
			text := e.ResourceVersion(revision)
			if got, err := e.Revision(text); err != nil || got != revision {
				t.Errorf("epoch %d: revision %d became %s, and then %d, %v", e, revision, text, got, err)
			}
			other := e ^ 1
			switch got, err := other.Revision(text); {
			case other > e && !apierrors.IsResourceExpired(err), other < e && (err != nil || got < 1<<revisionBits):
				t.Errorf("epoch %d: %s of epoch %d is revision %d, %v", other, text, e, got, err)
			}
			o := &metav1.PartialObjectMetadata{}
			if err := e.UpdateObject(o, uint64(revision)); err != nil || o.ResourceVersion != text {
				t.Errorf("an object has %s, want %s; %v", o.ResourceVersion, text, err)
			}
			if got, err := other.ObjectResourceVersion(o); err != nil || got == uint64(revision) {
				t.Errorf("an object of epoch %d is at %d in epoch %d; %v", e, got, other, err)
			}
		}
	}
	for _, bad := range []string{"x", "-1", "1.5", "18446744073709551616", " 1"} {
		if _, err := Epoch(0).Revision(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	for _, none := range []string{"", "0"} {
		if got, err := MaxEpoch.ObjectResourceVersion(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{ResourceVersion: none}}); err != nil || got != 0 {
			t.Errorf("%q is %d, %v", none, got, err)
		}
	}
}
