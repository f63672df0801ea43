package values

import (
	"fmt"
	"math"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// revisionBits is the number of bits of a resource version that hold the revision of etcd.
// The epoch has the higher ones. Clients may compare resource versions as int64.
const revisionBits = 48

// MaxEpoch is the highest [Epoch].
const MaxEpoch Epoch = 1<<15 - 1

// An Epoch counts the etcds that objects have had. It is a part of every resource version, so
// that no client takes a revision of one etcd for a revision of another. In epoch 0 the
// resource version is the revision. It implements [storage.Versioner] for one epoch.
type Epoch uint16

var _ storage.Versioner = Epoch(0)

// ResourceVersion returns the resource version for a revision in the epoch.
func (e Epoch) ResourceVersion(revision int64) string {
	return strconv.FormatInt(e.number(revision), 10)
}

func (e Epoch) number(revision int64) int64 { return int64(e)<<revisionBits | revision }

// Revision returns the revision of a resource version, 0 for an empty one. For a version of an
// earlier epoch it returns 410; for one of a later epoch a revision that etcd never reaches. A
// malformed one gets the error of [storage.APIObjectVersioner].
func (e Epoch) Revision(resourceVersion string) (int64, error) {
	n, err := storage.APIObjectVersioner{}.ParseResourceVersion(resourceVersion)
	if err != nil {
		return 0, err
	}
	revision, earlier := e.revision(n)
	if earlier {
		return 0, apierrors.NewResourceExpired(fmt.Sprintf("the resource version %s is from before the objects were moved or restored: list them again", resourceVersion))
	}
	return revision, nil
}

// revision returns the revision of a resource version, and whether it is of an earlier epoch.
func (e Epoch) revision(n uint64) (revision int64, earlier bool) {
	switch of := n >> revisionBits; {
	case n == 0:
		return 0, false
	case of > uint64(e):
		return int64(min(n, math.MaxInt64)), false
	default:
		return int64(n & (1<<revisionBits - 1)), of < uint64(e)
	}
}

// RevisionOf returns the revision of a resource version of any epoch, 0 if it is malformed.
func RevisionOf(resourceVersion string) int64 {
	n, err := strconv.ParseInt(resourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return n & (1<<revisionBits - 1)
}

// UpdateObject implements [storage.Versioner].
func (e Epoch) UpdateObject(o runtime.Object, revision uint64) error {
	if revision != 0 {
		revision = uint64(e.number(int64(revision)))
	}
	return storage.APIObjectVersioner{}.UpdateObject(o, revision)
}

// UpdateList implements [storage.Versioner].
func (e Epoch) UpdateList(o runtime.Object, revision uint64, next string, left *int64) error {
	if revision != 0 {
		revision = uint64(e.number(int64(revision)))
	}
	return storage.APIObjectVersioner{}.UpdateList(o, revision, next, left)
}

// PrepareObjectForStorage implements [storage.Versioner].
func (Epoch) PrepareObjectForStorage(o runtime.Object) error {
	return storage.APIObjectVersioner{}.PrepareObjectForStorage(o)
}

// ObjectResourceVersion implements [storage.Versioner]. For an object of an earlier epoch it
// returns a revision that no object has, so that an update of the object conflicts.
func (e Epoch) ObjectResourceVersion(o runtime.Object) (uint64, error) {
	n, err := storage.APIObjectVersioner{}.ObjectResourceVersion(o)
	if err != nil {
		return 0, err
	}
	revision, earlier := e.revision(n)
	if earlier {
		return math.MaxInt64, nil
	}
	return uint64(revision), nil
}

// ParseResourceVersion implements [storage.Versioner].
func (e Epoch) ParseResourceVersion(resourceVersion string) (uint64, error) {
	revision, err := e.Revision(resourceVersion)
	return uint64(revision), err
}
