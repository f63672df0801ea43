package serve

import (
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/util/jsonpath"
)

const (
	// maxBranches bounds how many times the parts of a path can multiply what they find.
	maxBranches = 64
	// maxPath is how long a path may be: parsing takes stack, and time by its square.
	maxPath = 4096
)

// checkColumns refuses a definition with a printer column that finds far more than there
// is: each step down to any depth, each range, and each union multiplies what was found
// by those before, so that a small object takes all the memory there is.
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
		parsed, err := jsonpath.Parse("column", "{"+column.JSONPath+"}") // as it is used
		if err != nil {
			continue // it shows nothing
		}
		w := pathWeight{branches: 1}
		w.add(parsed.Root)
		if w.descents > 1 || w.ranges > 0 || w.branches > maxBranches {
			return field.Invalid(at.Index(i).Child("jsonPath"), shortened(column.JSONPath),
				fmt.Sprintf("it may go down to any depth (..) once, have no range, and unions of %d ways together", maxBranches))
		}
	}
	return nil
}

// A pathWeight is what multiplies the results of a path.
type pathWeight struct{ descents, ranges, branches int }

func (w *pathWeight) add(node jsonpath.Node) {
	switch n := node.(type) {
	case *jsonpath.ListNode:
		if n == nil {
			return // the other side of a filter that only asks whether there is one
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
