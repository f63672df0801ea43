package workload

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/unforked/kcp/internal/cli/output"
)

// A rehearsal is the value of --dry-run.
type rehearsal string

const (
	inEarnest rehearsal = "none"
	byClient  rehearsal = "client" // nothing is sent that changes something
	byServer  rehearsal = "server" // changes are sent, and the server does not store them
)

// flag adds --dry-run to a command.
func (r *rehearsal) flag(cmd *cobra.Command, values ...rehearsal) {
	all := []string{}
	for _, v := range append([]rehearsal{inEarnest}, values...) {
		all = append(all, string(v))
	}
	what := "With client, only print what the command would do."
	if slices.Contains(values, byServer) {
		what += " With server, also send the changes, which the server checks and does not store."
	}
	cmd.Flags().StringVar((*string)(r), "dry-run", string(inEarnest), what)
	cmd.Flags().Lookup("dry-run").NoOptDefVal = string(byClient)
	output.CompleteFlag(cmd, "dry-run", cobra.FixedCompletions(all, cobra.ShellCompDirectiveNoFileComp))
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !slices.Contains(all, string(*r)) {
			return fmt.Errorf("unknown --dry-run %q; it is one of %q", *r, all)
		}
		return run(cmd, args)
	}
}

func (r rehearsal) active() bool { return r != inEarnest }

// suffix ends a sentence about something that was only rehearsed.
func (r rehearsal) suffix() string {
	return map[rehearsal]string{byClient: " (dry run)", byServer: " (server dry run)"}[r]
}

// of returns a client for SyncTargets that changes nothing in a rehearsal.
func (r rehearsal) of(targets dynamic.ResourceInterface) dynamic.ResourceInterface {
	if !r.active() {
		return targets
	}
	return rehearsed{targets, r}
}

// rehearsed is a client that stores nothing. Only the methods that commands use are changed.
type rehearsed struct {
	dynamic.ResourceInterface
	by rehearsal
}

// Patch implements [dynamic.ResourceInterface].
func (r rehearsed) Patch(ctx context.Context, name string, of types.PatchType, patch []byte, o metav1.PatchOptions, sub ...string) (*unstructured.Unstructured, error) {
	if r.by == byClient {
		return r.Get(ctx, name, metav1.GetOptions{}, sub...)
	}
	o.DryRun = []string{metav1.DryRunAll}
	return r.ResourceInterface.Patch(ctx, name, of, patch, o, sub...)
}

// Delete implements [dynamic.ResourceInterface].
func (r rehearsed) Delete(ctx context.Context, name string, o metav1.DeleteOptions, sub ...string) error {
	if r.by == byClient {
		return nil
	}
	o.DryRun = []string{metav1.DryRunAll}
	return r.ResourceInterface.Delete(ctx, name, o, sub...)
}
