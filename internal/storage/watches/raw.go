package watches

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// A Raw is a stored object: its value, which every schema and version decodes when it is read, and
// the metadata by which lists and watches select. The decoded object would be about thirty times as
// large.
type Raw struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	// Framed is the stored value with its frame. It never changes.
	Framed []byte
	// Object is the decoded object of a native kind. It is shared.
	Object runtime.Object
	shared *shared
}

// DeepCopyObject implements [runtime.Object].
func (r *Raw) DeepCopyObject() runtime.Object {
	c := *r
	return &c // what it points to never changes
}

// A RawList is a list of raws.
type RawList struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []Raw
}

// DeepCopyObject implements [runtime.Object].
func (l *RawList) DeepCopyObject() runtime.Object {
	c := *l
	c.Items = append([]Raw(nil), l.Items...)
	return &c
}

// CopyMeta copies the metadata of the list for clients.
func (l *RawList) CopyMeta(to metav1.ListInterface) {
	to.SetResourceVersion(l.ResourceVersion)
	to.SetContinue(l.Continue)
	to.SetRemainingItemCount(l.RemainingItemCount)
}
