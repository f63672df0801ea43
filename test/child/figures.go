package child

import (
	"bufio"
	"bytes"
	"math"
	"strconv"
	"strings"
	"time"
)

// Percentile returns a percentile of sorted times, by the nearest rank.
func Percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	i := int(math.Ceil(p/100*float64(len(sorted)))) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// ParseMetrics returns the metrics without labels, and the number of series.
func ParseMetrics(b []byte) (map[string]float64, int) {
	values, series := map[string]float64{}, 0
	lines := bufio.NewScanner(bytes.NewReader(b))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if line == "" || line[0] == '#' {
			continue
		}
		series++
		name, value, _ := strings.Cut(line, " ")
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			values[name] = v
		}
	}
	return values, series
}
