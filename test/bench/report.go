package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
)

// unit is the unit of a figure; it selects the format.
type unit string

const (
	seconds    unit = "s"
	bytesUnit  unit = "B"
	perSecond  unit = "/s"
	plainCount unit = ""
)

// row holds one figure for every subject.
type row struct {
	Case   string             `json:"case"`
	Figure string             `json:"figure"`
	Unit   unit               `json:"unit,omitempty"`
	Values map[string]float64 `json:"values"`
}

// report collects figures, in the order in which they are first added.
type report struct {
	Machine  []string `json:"machine"`
	Subjects []string `json:"subjects"`
	Rows     []*row   `json:"rows"`

	mu sync.Mutex // guards Rows
}

// add records one figure of one subject.
func (r *report) add(subject, of, figure string, u unit, value float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.Rows, func(x *row) bool { return x.Case == of && x.Figure == figure })
	if i < 0 {
		i = len(r.Rows)
		r.Rows = append(r.Rows, &row{of, figure, u, map[string]float64{}})
	}
	r.Rows[i].Values[subject] = value
}

// addTime records a duration.
func (r *report) addTime(subject, of, figure string, d time.Duration) {
	r.add(subject, of, figure, seconds, d.Seconds())
}

// markdown writes the table. The ratio is the first subject to the second.
func (r *report) markdown(w io.Writer) error {
	var b strings.Builder
	for _, m := range r.Machine {
		fmt.Fprintf(&b, "- %s\n", m)
	}
	cells := append([]string{"case", "figure"}, r.Subjects...)
	ratio := len(r.Subjects) == 2
	if ratio {
		cells = append(cells, r.Subjects[0]+" / "+r.Subjects[1])
	}
	fmt.Fprintf(&b, "\n| %s |\n|%s%s\n", strings.Join(cells, " | "), "---|---|", strings.Repeat("---:|", len(cells)-2))
	previous := ""
	for _, x := range r.Rows {
		cells := []string{x.Case, x.Figure}
		if x.Case == previous {
			cells[0] = ""
		}
		previous = x.Case
		for _, s := range r.Subjects {
			cells = append(cells, format(x.Values, s, x.Unit))
		}
		if ratio {
			cells = append(cells, quotient(x.Values, r.Subjects[0], r.Subjects[1]))
		}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// json writes the report as JSON; durations are in seconds.
func (r *report) json(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

func quotient(values map[string]float64, a, b string) string {
	x, okA := values[a]
	y, okB := values[b]
	if !okA || !okB || y <= 0 || x < 0 { // around zero a ratio is noise
		return "–"
	}
	return fmt.Sprintf("%.2f", x/y)
}

func format(values map[string]float64, subject string, u unit) string {
	v, ok := values[subject]
	if !ok {
		return "–"
	}
	switch u {
	case seconds:
		return scaled(v, []step{{1, "s"}, {1e-3, "ms"}, {1e-6, "µs"}})
	case bytesUnit:
		return scaled(v, []step{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}, {1, "B"}})
	case perSecond:
		return fmt.Sprintf("%.0f/s", v)
	}
	return strings.TrimSuffix(fmt.Sprintf("%.2f", math.Round(v*100)/100+0), ".00") // + 0 makes -0 a plain 0
}

type step struct {
	size float64
	name string
}

// scaled writes v with three digits in the largest unit that it fills.
func scaled(v float64, steps []step) string {
	s := steps[len(steps)-1]
	for _, x := range steps {
		if math.Abs(v) >= x.size {
			s = x
			break
		}
	}
	v /= s.size
	decimals := 2
	for a := math.Abs(v); a >= 10 && decimals > 0; a /= 10 {
		decimals--
	}
	return fmt.Sprintf("%.*f %s", decimals, v, s.name)
}
