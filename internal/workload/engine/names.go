package engine

import (
	"crypto/sha256"
	"encoding/json"
	"math/big"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
)

// hash returns the first digits of the base36 form of a SHA-256 sum. Parts have no NUL.
func hash(digits int, parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return new(big.Int).SetBytes(sum[:]).Text(36)[:digits]
}

// TargetKey returns the key of a SyncTarget. Another one of the same name has another key.
func TargetKey(compute, name, uid string) string { return hash(16, compute, name, uid) }

// An ID identifies an object of a workspace.
type ID struct {
	schema.GroupResource
	Key kcp.Key
}

// Task returns the key under which loops work on the object. Loops work on objects of all kinds, so
// its name has the resource. No object has such a name.
func (id ID) Task() kcp.Key {
	key := id.Key
	key.Name = id.GroupResource.String() + "/" + key.Name
	return key
}

// IDOf returns the object of a task.
func IDOf(task kcp.Key) ID {
	resource, name, _ := strings.Cut(task.Name, "/")
	id := ID{schema.ParseGroupResource(resource), task}
	id.Key.Name = name
	return id
}

// IDFor returns the workload that a side object refers to.
func IDFor(side metav1.Object, of workload.WorkloadReference) ID {
	id := ID{schema.GroupResource{Group: of.Group, Resource: of.Resource}, kcp.KeyOf(side)}
	id.Key.Name = of.Name
	return id
}

// Beside returns the object of another kind and name in the same namespace.
func (id ID) Beside(resource schema.GroupResource, name string) ID {
	id.GroupResource, id.Key.Name = resource, name
	return id
}

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

// AssignmentName returns the name of the Assignment of a workload. Names of custom resources may have characters
// that those of Assignments may not have.
func AssignmentName(of schema.GroupResource, name string) string {
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return hash(20, of.String(), name)
	}
	short := name[:min(len(name), kept)]
	return strings.TrimRight(short, "-.") + "." + hash(10, of.String(), name)
}

// StatusName returns the name of the TargetStatus of a workload and a target.
func StatusName(of schema.GroupResource, name, target string) string {
	return AssignmentName(of, name) + "." + target
}
