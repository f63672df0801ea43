package tenancy

import (
	"crypto/sha256"
	"math/big"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	core "github.com/unforked/kcp/apis/core/v1alpha1"
	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
)

// A Shard is the name of a server, or of equal servers on one etcd, that hosts clusters.
type Shard string

// RootShard hosts the root workspace.
const RootShard Shard = "root"

// hash returns the first eight characters of the base36 form of the SHA-224 of the name.
func (s Shard) hash() string {
	sum := sha256.Sum224([]byte(s))
	text := new(big.Int).SetBytes(sum[:]).Text(36)
	return strings.Repeat("0", max(0, 8-len(text))) + text[:min(8, len(text))]
}

// hosts records on a Workspace that the shard hosts its cluster.
func (s Shard) hosts(child *metav1.ObjectMeta) {
	setAnnotation(child, core.ShardAnnotation, string(s))
	setAnnotation(child, tenancyapi.ShardHashAnnotation, s.hash())
}
