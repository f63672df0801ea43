package engine

import (
	"crypto/sha256"
	"encoding/json"
	"math/big"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
)

// hash returns the first digits of the base36 form of a SHA-256 sum. Parts have no NUL.
func hash(digits int, parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return new(big.Int).SetBytes(sum[:]).Text(36)[:digits]
}

// TargetKey returns the key of a SyncTarget. Another one of the same name has another key.
func TargetKey(compute, name, uid string) string { return hash(16, compute, name, uid) }

// A Locator says where an object of a physical cluster is from.
type Locator struct {
	Cluster   string `json:"cluster"`
	Namespace string `json:"namespace"`
	Target    string `json:"target"`
}

// locatorOf returns the locator of an object, if it has one.
func locatorOf(o metav1.Object) (Locator, bool) {
	var l Locator
	text, ok := o.GetAnnotations()[workload.LocatorAnnotation]
	if !ok || json.Unmarshal([]byte(text), &l) != nil {
		return Locator{}, false
	}
	return l, true
}

func (l Locator) text() (string, error) {
	text, err := json.Marshal(l)
	return string(text), err
}

// namespace returns the namespace of the physical cluster that holds the objects of a namespace of
// a logical cluster.
func (l Locator) namespace() string { return "kcp-" + hash(20, l.Cluster, l.Namespace, l.Target) }

// kept is the part of a workload's name that is in the names of its side objects.
const kept = 180

// AssignmentName returns the name of the Assignment of a workload.
func AssignmentName(of schema.GroupResource, name string) string {
	short := name[:min(len(name), kept)]
	return strings.TrimRight(short, "-.") + "." + hash(10, of.String(), name)
}

// StatusName returns the name of the TargetStatus of a workload and a target.
func StatusName(of schema.GroupResource, name, target string) string {
	return AssignmentName(of, name) + "." + target
}
