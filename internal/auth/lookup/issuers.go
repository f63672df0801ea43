package lookup

import (
	"context"
	"encoding/json"

	"k8s.io/apimachinery/pkg/runtime/schema"

	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/auth/issuers"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
	"github.com/unforked/kcp/internal/storage/store"
	"github.com/unforked/kcp/internal/tenancy/tree"
)

// Issuers holds the identity providers of the WorkspaceAuthenticationConfigurations of all
// clusters. They have no tenant, which is the cluster of their row.
type Issuers struct {
	table *feed.Table[[]issuers.Provider]
}

// issuersForm has the fields that are read of a stored WorkspaceAuthenticationConfiguration.
type issuersForm struct {
	Spec struct {
		JWT []json.RawMessage `json:"jwt"`
	} `json:"spec"`
}

// NewIssuers returns the table, which follows the change feed of the store. identity is that of
// the API of workspaces.
func NewIssuers(s *store.Store, identity string) *Issuers {
	gr := schema.GroupResource{Group: tenancyapi.GroupVersion.Group, Resource: "workspaceauthenticationconfigurations"}
	return &Issuers{feed.NewCustomTable(s.Feed(), keys.CustomResource(gr, identity), func(f *issuersForm) ([]issuers.Provider, error) {
		all := make([]issuers.Provider, len(f.Spec.JWT))
		for i, jwt := range f.Spec.JWT {
			all[i] = issuers.NewProvider("", jwt)
		}
		return all, nil
	})}
}

// Of returns the identity providers that the type of workspace c references. Their
// configurations are in the cluster of the type.
func (i *Issuers) Of(ctx context.Context, types *tree.Types, c cluster.Name) []issuers.Provider {
	t, err := types.Of(ctx, c)
	if err != nil || t == nil {
		return nil
	}
	var all []issuers.Provider
	for _, ref := range t.Spec.AuthenticationConfigurations {
		named, _ := i.table.Get(t.Cluster, "", ref.Name)
		for _, w := range named {
			w.Tenant = t.Cluster
			all = append(all, w)
		}
	}
	return all
}
