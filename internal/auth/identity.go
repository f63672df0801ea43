package auth

import (
	"strings"

	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	"github.com/unforked/kcp/internal/cluster"
)

const (
	// ClusterNameKey is the key in a user's extra that holds the cluster of a service
	// account.
	ClusterNameKey = "authentication.kcp.io/cluster-name"

	// ForeignServiceAccountPrefix begins the name of a service account in every cluster but
	// its own. Cluster, namespace and name follow, joined with colons.
	ForeignServiceAccountPrefix = "system:kcp:serviceaccount:"
)

// A service account has its own name in its own cluster only, and a foreign name in all others.
// The functions below return the name that a user has:
//
//	[AccountIn]   in cluster c
//	[SeenFrom]    in cluster c, where scopes may not allow them anything
//	[Elsewhere]   in all clusters but c, in which they act
//	[SeenAt]      in the bindings of another cluster, while they act in c
//	[Consumer]    in the cluster of a provider, while they act in c

// AccountIn returns the identity of u in cluster c. Only service accounts differ:
// "system:serviceaccount:<namespace>:<name>" names another account in every cluster, so an
// account of another cluster must never be matched by that name.
func AccountIn(c cluster.Name, u user.Info) user.Info {
	if !IsServiceAccount(u) {
		return u
	}
	home := u.GetExtra()[ClusterNameKey]
	switch {
	case len(home) == 0:
		// Impersonation and access reviews in c name accounts of c without their cluster.
		return u
	case len(home) == 1 && home[0] == string(c):
		return u
	case len(home) == 1:
		if n, err := cluster.ParseName(home[0]); err == nil {
			return Foreign(n, u)
		}
	}
	return &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllAuthenticated}}
}

// SeenFrom returns the identity of u in cluster c. It never matches another user of c with
// the same name. A user who is out of scope in c is anonymous.
func SeenFrom(c cluster.Name, u user.Info) user.Info {
	if !InScope(u, c) {
		return OutOfScope(u)
	}
	return AccountIn(c, u)
}

// Elsewhere returns the identity that every other cluster sees of a user u acting in
// cluster c. A user who is out of scope in c is anonymous.
func Elsewhere(c cluster.Name, u user.Info) user.Info {
	if !InScope(u, c) {
		return OutOfScope(u)
	}
	return elsewhere(c, u)
}

// elsewhere is [Elsewhere] without the scopes of u.
func elsewhere(c cluster.Name, u user.Info) user.Info {
	if u = AccountIn(c, u); IsServiceAccount(u) {
		return Foreign(c, u)
	}
	return u
}

// NameElsewhere returns the name that every other cluster sees of a user acting in cluster
// c. Only service accounts have another name than in c.
func NameElsewhere(c cluster.Name, u user.Info) string {
	return elsewhere(c, u).GetName()
}

// SeenAt returns the identity of a user acting in cluster c for bindings in cluster at. A
// service account of at has its local name there.
func SeenAt(at, c cluster.Name, u user.Info) user.Info {
	u = elsewhere(c, u)
	home := u.GetExtra()[ClusterNameKey]
	if len(home) != 1 || home[0] != string(at) {
		return u
	}
	account, ok := strings.CutPrefix(u.GetName(), ForeignServiceAccountPrefix+string(at)+":")
	if !ok {
		return u
	}
	namespace, _, _ := strings.Cut(account, ":")
	return &user.DefaultInfo{
		Name: serviceaccount.ServiceAccountUsernamePrefix + account, UID: u.GetUID(), Extra: u.GetExtra(),
		Groups: append(serviceaccount.MakeGroupNames(namespace), user.AllAuthenticated),
	}
}

// Foreign returns the identity that every other cluster sees of a service account of home.
func Foreign(home cluster.Name, u user.Info) *user.DefaultInfo {
	extra := map[string][]string{ClusterNameKey: {string(home)}}
	if id := u.GetExtra()[user.CredentialIDKey]; len(id) > 0 {
		extra[user.CredentialIDKey] = id
	}
	account := strings.TrimPrefix(u.GetName(), serviceaccount.ServiceAccountUsernamePrefix)
	return &user.DefaultInfo{
		Name:   ForeignServiceAccountPrefix + string(home) + ":" + account,
		UID:    u.GetUID(),
		Groups: []string{user.AllAuthenticated, ClusterGroupPrefix + string(home)},
		Extra:  extra,
	}
}

// IsServiceAccount reports whether a user has the name of a service account.
func IsServiceAccount(u user.Info) bool {
	return strings.HasPrefix(u.GetName(), serviceaccount.ServiceAccountUsernamePrefix)
}

// Home returns the cluster that u is a service account of, and whether u is one.
func Home(u user.Info) (cluster.Name, bool) {
	home := u.GetExtra()[ClusterNameKey]
	if len(home) != 1 || !IsServiceAccount(u) && !strings.HasPrefix(u.GetName(), ForeignServiceAccountPrefix) {
		return "", false
	}
	c, err := cluster.ParseName(home[0])
	return c, err == nil
}

// Consumer returns a user of cluster c under the names by which providers know them.
func Consumer(c cluster.Name, u user.Info) user.Info {
	u = elsewhere(c, u)
	out := &user.DefaultInfo{Name: apisv1alpha2.ConsumerPrefix + u.GetName(), UID: u.GetUID()}
	for _, g := range u.GetGroups() {
		out.Groups = append(out.Groups, apisv1alpha2.ConsumerPrefix+g)
	}
	return out
}
