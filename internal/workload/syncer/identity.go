package syncer

import (
	"fmt"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
)

// Name is the name of the view, and the first word of the names of its agents.
const Name = "syncer"

// An Identity is the agent of one SyncTarget. A later SyncTarget of the same name has another UID.
type Identity struct {
	Compute     kcp.ClusterName
	Target, UID string
}

// Path returns the path of the view.
func (i Identity) Path() string {
	return workload.SyncerPath(string(i.Compute), i.Target, i.UID)
}

// agent returns the name in the certificates of the agent.
func (i Identity) agent() string { return Name + ":" + i.Target + ":" + i.UID }

// is reports whether a user is the agent. The certificate was verified in the compute workspace.
func (i Identity) is(u user.Info) bool { return u.GetName() == kcp.AgentPrefix+i.agent() }

// parse reads the identity at the beginning of a path, without the name of the view.
func parse(path string) (i Identity, rest string, ok bool) {
	words := strings.SplitN(path, "/", 4)
	if len(words) < 4 {
		return i, "", false
	}
	i = Identity{kcp.ClusterName(words[0]), words[1], words[2]}
	return i, words[3], words[0] != "" && words[1] != "" && words[2] != ""
}

// ParsePath returns the identity in the path of a view.
func ParsePath(path string) (Identity, error) {
	_, below, ok := strings.Cut(path, "/services/"+Name+"/")
	i, _, parsed := parse(strings.TrimSuffix(below, "/") + "/")
	if !ok || !parsed {
		return i, fmt.Errorf("%q is not the path of the view of a SyncTarget", path)
	}
	return i, nil
}
