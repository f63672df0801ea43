package sharing

import (
	"context"
	"encoding/csv"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apis "github.com/unforked/kcp/apis/apis/v1alpha2"
	"github.com/unforked/kcp/internal/cli/command"
	"github.com/unforked/kcp/internal/cli/output"
	"github.com/unforked/kcp/internal/cli/remote"
	"github.com/unforked/kcp/internal/cluster"
)

const asCSV output.Format = "csv"

// UsageCommand returns the command "kubectl kcp usage".
func UsageCommand(a *command.App) *cobra.Command {
	var f output.Format
	var consumer string
	cmd := &cobra.Command{
		Use:   "usage [PATH:]EXPORT",
		Short: "Show what the consumers of an APIExport store, and have stored",
		Long: `Show what each consumer of an APIExport stores now and has stored since it began, and which versions it requests. Without a path, the export is in the current workspace.

Object-hours are objects multiplied by the time that they existed, GiB-hours are stored bytes multiplied by time. They only grow: the difference of two reports is the usage between them. Consumers that have ended stay in the report for 90 days.

This needs the verb get on apiexports/usage.`,
		Example: `  # Show the usage of the export widgets of the current workspace
  kubectl kcp usage widgets

  # Save all figures, in seconds and bytes, for a bill
  kubectl kcp usage root:tools:widgets -o csv > usage.csv

  # Show the usage of one consumer
  kubectl kcp usage widgets --consumer root:shop`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.CompleteExport,
		RunE: func(cmd *cobra.Command, args []string) error {
			return reportUsage(cmd.Context(), a, args[0], consumer, f)
		},
	}
	output.Flag(cmd, &f, []output.Format{asCSV, output.JSON, output.YAML})
	cmd.Flags().StringVar(&consumer, "consumer", "", "Show only this consumer: the path of a workspace, as in root:shop, or the name of a logical cluster")
	output.CompleteFlag(cmd, "consumer", a.CompletePath)
	return cmd
}

func reportUsage(ctx context.Context, a *command.App, ref, consumer string, f output.Format) error {
	srv, path, name, err := openExport(ctx, a, ref)
	if err != nil {
		return err
	}
	report, err := getUsage(ctx, srv, path, name, strings.TrimPrefix(consumer, ":"))
	if err != nil {
		return remote.About(path, "cannot read the usage of export %q in workspace %q: %w", name, path, err)
	}
	switch {
	case f == asCSV:
		return printCSV(a.Print, report)
	case f.Encoded():
		return a.Print.Result(f, report)
	case len(report.Consumers) == 0 && consumer != "":
		a.Print.Note("The export %q has no consumer %s.", name, consumer)
		return nil
	case len(report.Consumers) == 0:
		a.Print.Note("The export %q has no consumers.", name)
		return nil
	}
	a.Print.Table(usageTable(report))
	a.Print.Note("Complete up to %s.", report.Time.UTC().Format(time.RFC3339))
	return nil
}

// getUsage returns all pages of the usage of an export.
func getUsage(ctx context.Context, s *remote.Server, path cluster.Path, name, consumer string) (*apis.APIExportUsage, error) {
	at := "/clusters/" + string(path) + "/apis/" + apis.GroupVersion.String() + "/apiexports/" + url.PathEscape(name) + "/usage"
	query := url.Values{}
	if consumer != "" {
		query.Set("consumer", consumer)
	}
	var all *apis.APIExportUsage
	for {
		page := &apis.APIExportUsage{}
		if err := s.Ask(ctx, at, query, page); err != nil {
			return nil, err
		}
		next := page.Continue
		if page.Continue = ""; all == nil {
			all = page
		} else {
			all.Consumers = append(all.Consumers, page.Consumers...)
		}
		if next == "" {
			return all, nil
		}
		query.Set("continue", next)
	}
}

func usageTable(report *apis.APIExportUsage) [][]string {
	rows := [][]string{{"CONSUMER", "RESOURCE", "OBJECTS", "BYTES", "OBJECT-HOURS", "GIB-HOURS", "REQUESTS", "UNTIL", "VERSIONS"}}
	for _, c := range report.Consumers {
		for _, r := range c.Resources {
			rows = append(rows, []string{
				c.Path, schema.GroupResource{Group: r.Group, Resource: r.Resource}.String(), strconv.FormatInt(r.Objects, 10), strconv.FormatInt(r.Bytes, 10),
				hours(float64(r.ObjectSeconds) / 3600), hours(float64(r.ByteSeconds) / 3600 / (1 << 30)), strconv.FormatInt(requestsOf(r), 10), output.OrDash(timeText(r.Until)), output.OrDash(strings.Join(versionTexts(r), ", ")),
			})
		}
	}
	return rows
}

// requestsOf returns the number of requests of all verbs.
func requestsOf(r apis.ResourceUsage) (n int64) {
	for _, count := range r.Requests {
		n += count
	}
	return n
}

// hours returns a number for people.
func hours(n float64) string {
	if n > 0 && n < 0.01 {
		return "<0.01"
	}
	return strconv.FormatFloat(n, 'f', 2, 64)
}

func timeText(t *metav1.MicroTime) string {
	if t == nil {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

func versionTexts(r apis.ResourceUsage) []string {
	var all []string
	for _, v := range r.Versions {
		all = append(all, v.Version+" ("+v.LastRequest+")")
	}
	return all
}

// printCSV prints a line for each consumer and resource. The numbers are exact.
func printCSV(p *output.Printer, report *apis.APIExportUsage) error {
	w := csv.NewWriter(p.Out)
	lines := [][]string{{"time", "export", "path", "cluster", "group", "resource", "objects", "bytes", "object_seconds", "byte_seconds", "requests", "since", "until", "versions"}}
	for _, c := range report.Consumers {
		for _, r := range c.Resources {
			lines = append(lines, []string{
				timeText(&report.Time), report.Export, c.Path, c.Cluster, r.Group, r.Resource, strconv.FormatInt(r.Objects, 10), strconv.FormatInt(r.Bytes, 10),
				strconv.FormatInt(r.ObjectSeconds, 10), strconv.FormatInt(r.ByteSeconds, 10), strconv.FormatInt(requestsOf(r), 10), timeText(r.Since), timeText(r.Until), strings.Join(versionTexts(r), " "),
			})
		}
	}
	return w.WriteAll(lines)
}
