package authn

import (
	"encoding/base64"
	"strings"

	"sigs.k8s.io/json"

	"github.com/unforked/kcp/internal/auth"
	"github.com/unforked/kcp/internal/cluster"
)

// Claims that hold the cluster of a service account token.
const (
	kubernetesClaim    = "kubernetes.io"
	boundClusterClaim  = "clusterName" // inside of kubernetesClaim
	legacyClusterClaim = "kubernetes.io/serviceaccount/clusterName"
)

// ClusterOfToken returns the cluster that a service account token claims, and whether it
// claims one. It does not verify the token. Use it only to route a request to the cluster
// that can verify its token.
func ClusterOfToken(token string) (cluster.Name, bool) {
	if len(token) > auth.MaxToken {
		return "", false
	}
	_, rest, _ := strings.Cut(token, ".")
	payload, signature, ok := strings.Cut(rest, ".")
	if !ok || strings.Contains(signature, ".") || strings.ContainsAny(payload, "\r\n") {
		return "", false // encoding/base64 would skip line breaks
	}
	data, err := base64.RawURLEncoding.Strict().DecodeString(payload)
	if err != nil {
		return "", false
	}
	var claims struct {
		Bound struct {
			Cluster string `json:"clusterName"`
		} `json:"kubernetes.io"`
		Legacy string `json:"kubernetes.io/serviceaccount/clusterName"`
	}
	if twice, err := json.UnmarshalStrict(data, &claims, json.DisallowDuplicateFields); err != nil || len(twice) > 0 {
		return "", false
	}
	name := claims.Bound.Cluster
	if name == "" {
		name = claims.Legacy
	} else if claims.Legacy != "" {
		return "", false
	}
	c, err := cluster.ParseName(name)
	return c, err == nil
}
