package bind

import (
	"context"
	"fmt"
	"slices"

	tenancyapi "github.com/unforked/kcp/apis/tenancy/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/resources/define"
	"github.com/unforked/kcp/internal/sharing/exports"
	"github.com/unforked/kcp/internal/tenancy"
	"github.com/unforked/kcp/internal/tenancy/tree"
)

// Bootstrap creates what the server needs to share APIs, unless it exists: the cluster of the
// definitions of bound schemas, the cluster of the shard, and the built-in exports, to which the
// root workspace and the shard are bound.
// A server with other schemas than the last one adds them, and names them in its exports.
func (a *APIs) Bootstrap(ctx context.Context) error {
	if err := a.workspaces.MakeSystem(ctx, cluster.BoundDefinitions); err != nil {
		return err
	}
	if !a.binds() {
		return nil
	}
	var refs []tree.DefaultExport
	for _, b := range tenancy.BuiltIns() {
		err := a.Exports.Provide(ctx, b)
		if err == nil {
			err = a.prepare(ctx, exports.Name{Cluster: cluster.Root, Name: b.Name})
		}
		if err != nil {
			return fmt.Errorf("export %s: %w", b.Name, err)
		}
		if len(b.Kinds) == 0 {
			continue
		}
		refs = append(refs, tree.DefaultExport{APIExportReference: tenancyapi.APIExportReference{Path: string(cluster.Root), Export: b.Name}})
	}
	if _, made := a.workspaces.Tree.Cluster(cluster.Shard); !made { // a start writes nothing that is there: the disk may be full
		if err := a.workspaces.MakeCluster(ctx, cluster.Shard); err != nil {
			return err
		}
	}
	for _, c := range []cluster.Name{cluster.Root, cluster.Shard} {
		waits, err := a.Bind(ctx, c, refs, false)
		if err == nil && len(waits) > 0 {
			err = fmt.Errorf("%s cannot bind the built-in exports: %s", c, waits[0].Message)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// binds reports whether this server can bind exports. Without CustomResourceDefinitions it
// cannot, and has the kinds of its built-in exports in every workspace.
func (a *APIs) binds() bool { return a.store.Serves(define.Resource()) }

// RootBinding reports whether a binding of the root workspace is to a built-in export.
func (a *APIs) RootBinding(name string) bool {
	b := a.Bindings.Get(cluster.Root, name)
	return b != nil && slices.ContainsFunc(tenancy.BuiltIns(), func(x tenancy.BuiltIn) bool { return b.Export == exports.Name{Cluster: cluster.Root, Name: x.Name} })
}
