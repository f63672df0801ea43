package define

import (
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/util/jsonpath"

	"github.com/unforked/kcp/internal/request/bounds"
)

const (
	// maxBranches is the maximal product of the sizes of all unions in a path.
	maxBranches = 64
	// maxPath is the maximal length of a path in bytes. Parsing is recursive, and takes
	// time quadratic in the length.
	maxPath = 4096
)

// checkColumns refuses a definition with an expensive path in a printer column. Each
// recursive descent, range and union multiplies the results of the steps before it, so
// that a path could exhaust the memory even on a small object.
func checkColumns(crd *apiextensions.CustomResourceDefinition) *field.Error {
	err := checkPaths(crd.Spec.AdditionalPrinterColumns, field.NewPath("spec", "additionalPrinterColumns"))
	for i := range crd.Spec.Versions {
		if err == nil {
			err = checkPaths(crd.Spec.Versions[i].AdditionalPrinterColumns, field.NewPath("spec", "versions").Index(i).Child("additionalPrinterColumns"))
		}
	}
	return err
}

func checkPaths(columns []apiextensions.CustomResourceColumnDefinition, at *field.Path) *field.Error {
	for i, column := range columns {
		if len(column.JSONPath) > maxPath {
			return field.TooLong(at.Index(i).Child("jsonPath"), "", maxPath)
		}
		parsed, err := jsonpath.Parse("column", "{"+column.JSONPath+"}") // as upstream parses it
		if err != nil {
			continue // upstream shows an empty column
		}
		w := pathWeight{branches: 1}
		w.add(parsed.Root)
		if w.descents > 1 || w.ranges > 0 || w.branches > maxBranches {
			return field.Invalid(at.Index(i).Child("jsonPath"), bounds.Shortened(column.JSONPath),
				fmt.Sprintf("it may go down to any depth (..) once, have no range, and unions of %d ways together", maxBranches))
		}
	}
	return nil
}

// A pathWeight counts the steps of a path that multiply its results.
type pathWeight struct{ descents, ranges, branches int }

func (w *pathWeight) add(node jsonpath.Node) {
	switch n := node.(type) {
	case *jsonpath.ListNode:
		if n == nil {
			return // the right side of a filter that only tests existence
		}
		for _, one := range n.Nodes {
			w.add(one)
		}
	case *jsonpath.FilterNode:
		w.add(n.Left)
		w.add(n.Right)
	case *jsonpath.UnionNode:
		w.branches = min(w.branches*max(1, len(n.Nodes)), maxBranches+1)
		for _, one := range n.Nodes {
			w.add(one)
		}
	case *jsonpath.RecursiveNode:
		w.descents++
	case *jsonpath.IdentifierNode:
		w.ranges++
	}
}
