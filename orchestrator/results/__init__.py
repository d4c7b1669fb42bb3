"""Results of figures: outcomes, comparisons, claims, export files, pictures, reports and bundles."""
